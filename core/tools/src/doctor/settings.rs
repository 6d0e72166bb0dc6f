//! Settings that somebody set, and names that look like settings and are not.

use ccl::Config;
use ccl::config::Source;

use super::Finding;

/// What differs from the defaults, and who says so.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let set = config.resolved().iter().filter(|resolved| resolved.source != Source::Default);
    let set = set.map(|resolved| {
        let why = format!("from {}", resolved.source);
        Finding::ok("settings", resolved.setting.name, &resolved.value, why)
    });
    let candidates = config.env_candidates().iter();
    let candidates = candidates.map(|candidate| {
        let name = config.env().filter(|_| candidate.is_chosen()).map_or("none", |plugin| plugin.name());
        Finding::ok("settings", "env plugin", name, candidate.to_string())
    });
    let warnings = config.warnings().iter();
    let warnings = warnings.map(|warning| Finding::warning("settings", "unknown", "ignored", warning));
    let ignored = config.ignored().iter();
    let ignored = ignored.map(|name| Finding::ok("settings", name, "ignored", "has no meaning here"));
    let mut findings: Vec<_> = candidates.chain(set).chain(warnings).chain(ignored).collect();
    if findings.is_empty() {
        findings.push(Finding::ok("settings", "all", "default", ""));
    }
    findings
}
