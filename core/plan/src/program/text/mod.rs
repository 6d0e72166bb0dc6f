//! The text form: what golden tests compare and what users write.
//!
//! ```text
//! program all_reduce.ring
//! collective all_reduce
//! chunks n                 # k, the chunks of one pass
//! scratch 0                # cells of each lane
//! lane 0 of 1              # share 0 of 1
//!   send                  pre       in -> to [r+1]                      chunk [r-1]
//!   for i in 2..n
//!     recv_reduce_send    pre       from [r-1], in -> to [r+1]          chunk [r-i]
//!   end
//! ```
//!
//! A Move is a name, `pre` and `post` where they apply, its inputs in fold order, `->`, its outputs,
//! and what it covers: `chunk`, `send_block` or `recv_block`, and from there on as many as `span`
//! says. Operands are `in`, `out` (the block of
//! another place in parentheses), `scratch(cell)`, `from peer` and `to peer`, with `:tag` for a
//! parallel edge. The name follows from the operands; a name that does not is an error.
//!
//! Sums of `r`, `root`, `n`, the loop variables `i`, `j`, `k` and a constant need no operator for
//! multiples: `2n-3i+1`. Square brackets reduce modulo n. Other functions are `lowbit`, `min`,
//! `max`, `add`, `xor`, `and`, `mul`, `div`, `mod`, `modn` and `pow2`. The other instructions are `signal`, `wait`,
//! `barrier` and `exit`. A `#` starts a comment.

mod lexer;
mod parse;
mod print;

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use super::Program;

/// Why a text is not a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextError {
    /// The line, from 1.
    pub line: usize,
    /// What may stand there.
    pub expected: String,
    /// What does.
    pub found: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}, found {}", self.line, self.expected, self.found)
    }
}

impl core::error::Error for TextError {}

impl FromStr for Program {
    type Err = TextError;

    /// Reads a text; the program is in canonical form and unchecked.
    fn from_str(text: &str) -> Result<Program, TextError> {
        parse::program(text)
    }
}

impl fmt::Display for Program {
    /// Writes the text. Reading it gives [`Program::canonical`] back, provided that loops are
    /// closed and lanes follow each other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::program(self, f)
    }
}

impl Program {
    /// The text of one instruction, in one line.
    pub fn instruction_text(&self, index: usize) -> String {
        self.instructions.get(index).map_or_else(String::new, |i| print::instruction(self, i))
    }
}

/// The names of the loop variables, outermost first.
const LOOP_VARS: [&str; 3] = ["i", "j", "k"];

#[cfg(test)]
mod tests;
