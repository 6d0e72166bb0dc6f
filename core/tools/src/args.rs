//! Values of options that several commands take.

use std::time::Duration;

/// Seconds, fractions allowed.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
    let duration = number.and_then(|number| Duration::try_from_secs_f64(number).ok());
    let duration = duration.filter(|duration| *duration <= LONGEST);
    duration.ok_or_else(|| format!("expected seconds such as 0.1 or 30, found `{text}`"))
}

/// What is longer could not be added to a moment.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
