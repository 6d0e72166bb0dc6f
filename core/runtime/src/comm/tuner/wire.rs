//! Advice as bytes, from rank 0 to all. All ranks run the same version, so that numbers mean the same.

use ccl_plan::select::{Advice, Advised, Choice};
use ccl_plan::{Algorithm, Collective};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

#[derive(Serialize, Deserialize)]
struct Line {
    collective: u8,
    algorithm: u8,
    channels: u16,
    from: u64,
    up_to: u64,
    chunk_bytes: u64,
}

/// As bytes.
pub(super) fn write(advice: &Advice) -> Result<Vec<u8>> {
    let line = |advised: &Advised| Line {
        collective: advised.collective as u8,
        algorithm: advised.choice.algorithm as u8,
        channels: advised.choice.channels,
        from: advised.from,
        up_to: advised.up_to,
        chunk_bytes: advised.chunk_bytes,
    };
    let lines: Vec<Line> = advice.given.iter().map(line).collect();
    postcard::to_stdvec(&(&advice.by, lines)).map_err(|error| Error::bug(format!("advice: {error}")))
}

/// Back from bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Advice> {
    let unreadable =
        |what: &dyn std::fmt::Display| Error::bug(format!("the advice of rank 0's tuner: {what}"));
    let (by, lines): (String, Vec<Line>) = postcard::from_bytes(bytes).map_err(|error| unreadable(&error))?;
    let given = lines.iter().map(Line::advised).collect::<Option<_>>();
    Ok(Advice { by, given: given.ok_or_else(|| unreadable(&"expected names that all ranks know"))? })
}

impl Line {
    fn advised(&self) -> Option<Advised> {
        let collective = Collective::ALL.into_iter().find(|one| *one as u8 == self.collective)?;
        let algorithm = Algorithm::ALL.into_iter().find(|one| *one as u8 == self.algorithm)?;
        let choice = Choice { algorithm, channels: self.channels };
        let Line { from, up_to, chunk_bytes, .. } = *self;
        Some(Advised { collective, from, up_to, choice, chunk_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_comes_back() {
        let choice = Choice { algorithm: Algorithm::Swing, channels: 7 };
        let advised =
            |from, up_to| Advised { collective: Collective::Reduce, from, up_to, choice, chunk_bytes: 64 };
        let advice = Advice { by: "mine".into(), given: vec![advised(0, 8), advised(9, u64::MAX)] };
        assert_eq!(read(&write(&advice).unwrap()).unwrap(), advice);
        assert_eq!(read(&write(&Advice::default()).unwrap()).unwrap(), Advice::default());
        assert!(read(&[9, 9]).is_err());
        let unknown = postcard::to_stdvec(&("x", vec![(200_u8, 0_u8, 1_u16, 0_u64, 1_u64, 0_u64)])).unwrap();
        assert!(read(&unknown).unwrap_err().to_string().contains("names that all ranks know"));
    }
}
