//! Settings that choose among names: interface filters, algorithm lists, addresses, ranges of ports.

use std::fmt;
use std::ops::RangeInclusive;

use crate::config::kind::{Kind, by_copy, find_word, parse_integer, split_names, word_of};

/// Names to take or to leave, written `[^][=]name,...`: `^` leaves them, `=` compares whole names
/// instead of beginnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameFilter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl NameFilter {
    /// Whether `name` passes.
    pub fn allows(&self, name: &str) -> bool {
        self.names.iter().any(|listed| self.matches(listed, name)) != self.exclude
    }

    /// Whether the filter only leaves names out (`^`), so that the automatic choice still decides
    /// among the rest.
    pub fn only_excludes(&self) -> bool {
        self.exclude
    }

    /// The place of `name` in the list, for a filter that takes names: earlier is preferred.
    pub fn position(&self, name: &str) -> Option<usize> {
        (!self.exclude).then(|| self.names.iter().position(|listed| self.matches(listed, name))).flatten()
    }

    fn matches(&self, listed: &str, name: &str) -> bool {
        if self.exact { name == listed } else { name.starts_with(listed) }
    }
}

impl Kind for NameFilter {
    type View<'a> = &'a NameFilter;

    fn expected() -> String {
        "names or beginnings of names separated by commas; `^` first leaves them out, `=` first means whole \
         names"
            .into()
    }

    fn parse(text: &str) -> Option<NameFilter> {
        let (exclude, rest) = strip_flag(text, '^');
        let (exact, rest) = strip_flag(rest, '=');
        let names = split_names(rest);
        (!names.is_empty()).then_some(NameFilter { exclude, exact, names })
    }

    fn view(&self) -> &NameFilter {
        self
    }

    fn print(&self) -> String {
        let flag = |set, sign| if set { sign } else { "" };
        format!("{}{}{}", flag(self.exclude, "^"), flag(self.exact, "="), self.names.join(","))
    }
}

/// Which names are allowed for which collective, written `[collective:][^]name,...;...`.
///
/// Names and collectives are compared without regard to case, `_` and spaces. The last rule that
/// speaks of a collective decides; a rule without a collective speaks of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    collective: Option<String>,
    exclude: bool,
    names: Vec<String>,
}

impl Choices {
    /// Whether `name` is allowed for `collective`.
    pub fn allows(&self, collective: &str, name: &str) -> bool {
        match self.0.iter().rfind(|rule| rule.speaks_of(collective)) {
            Some(rule) => rule.names.iter().any(|listed| *listed == fold(name)) != rule.exclude,
            None => true,
        }
    }

    /// Whether what is said of `collective` is said of it alone.
    pub fn is_about(&self, collective: &str) -> bool {
        let last = self.0.iter().rfind(|rule| rule.speaks_of(collective));
        last.is_some_and(|rule| rule.collective.is_some())
    }

    /// Every name that occurs, folded to lower case, so that the user of the setting can refuse those it does
    /// not know.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|rule| rule.names.iter().map(String::as_str))
    }

    /// Every collective that occurs, folded to lower case.
    pub fn collectives(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|rule| rule.collective.as_deref())
    }
}

impl Rule {
    fn parse(text: &str) -> Option<Rule> {
        let (collective, rest) = match text.split_once(':') {
            Some((collective, rest)) => (Some(fold(collective)), rest.trim()),
            None => (None, text),
        };
        let (exclude, rest) = strip_flag(rest, '^');
        let names: Vec<_> = split_names(rest).iter().map(|name| fold(name)).collect();
        let named = collective.as_ref().is_none_or(|name| !name.is_empty());
        (named && !names.is_empty()).then_some(Rule { collective, exclude, names })
    }

    fn speaks_of(&self, collective: &str) -> bool {
        self.collective.as_ref().is_none_or(|own| *own == fold(collective))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(collective) = &self.collective {
            write!(f, "{collective}:")?;
        }
        write!(f, "{}{}", if self.exclude { "^" } else { "" }, self.names.join(","))
    }
}

impl Kind for Choices {
    type View<'a> = &'a Choices;

    fn expected() -> String {
        "names separated by commas, `^` first to leave them out, per collective as in `ring;allreduce:tree,ring`".into()
    }

    fn parse(text: &str) -> Option<Choices> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        rules.map(Rule::parse).collect::<Option<Vec<_>>>().filter(|rules| !rules.is_empty()).map(Choices)
    }

    fn view(&self) -> &Choices {
        self
    }

    fn print(&self) -> String {
        self.0.iter().map(Rule::to_string).collect::<Vec<_>>().join(";")
    }
}

/// A host, by name or number, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// A TCP port, not 0.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Kind for Endpoint {
    type View<'a> = &'a Endpoint;

    fn expected() -> String {
        "an address such as `10.0.0.1:5000`, `[fe80::1]:5000` or `host:5000`".into()
    }

    fn parse(text: &str) -> Option<Endpoint> {
        let (host, port) = text.rsplit_once(':')?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let plain = bracketed.is_some() || !host.contains([':', '[', ']']);
        let port = parse_integer(port).filter(|&port| port != 0)?;
        (plain && !host.is_empty()).then(|| Endpoint { host: host.to_owned(), port })
    }

    fn view(&self) -> &Endpoint {
        self
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

/// Where ranks meet: one address, or several for as many shares of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Vec<Endpoint>);

impl Kind for Endpoints {
    type View<'a> = &'a [Endpoint];

    fn expected() -> String {
        format!("{}, or several of them separated by commas", Endpoint::expected())
    }

    fn parse(text: &str) -> Option<Endpoints> {
        let endpoints: Option<Vec<_>> = text.split(',').map(|one| Endpoint::parse(one.trim())).collect();
        endpoints.map(Endpoints)
    }

    fn view(&self) -> &[Endpoint] {
        &self.0
    }

    fn print(&self) -> String {
        self.0.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }
}

/// The ports a process may listen on, written `first-last` or as one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange(RangeInclusive<u16>);

impl Kind for PortRange {
    by_copy!(RangeInclusive<u16>, |value| value.0.clone());

    fn expected() -> String {
        "a port or a range of ports such as `40000-40999`".into()
    }

    fn parse(text: &str) -> Option<PortRange> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (parse_integer(first.trim())?, parse_integer(last.trim())?);
        (first > 0 && first <= last).then_some(PortRange(first..=last))
    }

    fn print(&self) -> String {
        format!("{}-{}", self.0.start(), self.0.end())
    }
}

/// The IP version to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

impl Kind for Family {
    by_copy!(Family, |value| *value);

    fn expected() -> String {
        "AF_INET or AF_INET6".into()
    }

    fn parse(text: &str) -> Option<Family> {
        find_word(&FAMILIES, text)
    }

    fn print(&self) -> String {
        word_of(&FAMILIES, *self).into()
    }
}

/// What the bits of a result may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Determinism {
    /// Same inputs, same ranks, same bits.
    Run,
    /// And an element's bits do not depend on count, offset, channels or chunking.
    Size,
    /// Nor on the number of ranks or the topology.
    World,
}

impl Kind for Determinism {
    by_copy!(Determinism, |value| *value);

    fn expected() -> String {
        "run, size or world".into()
    }

    fn parse(text: &str) -> Option<Determinism> {
        find_word(&LEVELS, text)
    }

    fn print(&self) -> String {
        word_of(&LEVELS, *self).into()
    }
}

/// A text that is never shown, neither in logs nor in errors.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Kind for Secret {
    type View<'a> = &'a Secret;

    fn expected() -> String {
        "text, the same on every rank; it is never shown".into()
    }

    fn parse(text: &str) -> Option<Secret> {
        Some(Secret(text.to_owned()))
    }

    fn view(&self) -> &Secret {
        self
    }

    fn print(&self) -> String {
        HIDDEN.into()
    }
}

/// Lower case, without the underscores and spaces that some spell and others do not.
fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | ' ')).map(|c| c.to_ascii_lowercase()).collect()
}

fn strip_flag(text: &str, flag: char) -> (bool, &str) {
    match text.strip_prefix(flag) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

const FAMILIES: [(&str, Family); 6] = [
    ("AF_INET", Family::Inet),
    ("AF_INET6", Family::Inet6),
    ("inet", Family::Inet),
    ("inet6", Family::Inet6),
    ("ipv4", Family::Inet),
    ("ipv6", Family::Inet6),
];

const LEVELS: [(&str, Determinism); 3] =
    [("run", Determinism::Run), ("size", Determinism::Size), ("world", Determinism::World)];

/// What stands where a secret would.
pub(super) const HIDDEN: &str = "(hidden)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_take_or_leave_beginnings_or_whole_names() {
        let filter = |text| NameFilter::parse(text).unwrap();
        assert!(filter("eth").allows("eth0"));
        assert!(!filter("=eth").allows("eth0"));
        assert!(filter("=eth0,ib0").allows("ib0"));
        assert!(!filter("^docker,lo").allows("docker0"));
        assert!(filter("^docker,lo").allows("eth0"));
        assert!(filter("^=lo").allows("lo2"));
        assert!(filter("^lo").only_excludes());
        assert_eq!(filter("ib,eth").position("eth1"), Some(1));
        assert_eq!(filter("^ib").position("eth1"), None);
        assert_eq!(filter("^=lo, eth0").print(), "^=lo,eth0");
        assert_eq!(NameFilter::parse("^"), None);
        assert_eq!(NameFilter::parse(","), None);
    }

    #[test]
    fn the_last_rule_for_a_collective_decides() {
        let choices = Choices::parse("ring;allreduce:tree,Ring;broadcast:^ring").unwrap();
        assert!(choices.allows("all_gather", "RING"));
        assert!(!choices.allows("all_gather", "tree"));
        assert!(choices.allows("all_reduce", "tree"));
        assert!(choices.allows("Broadcast", "tree"));
        assert!(!choices.allows("broadcast", "ring"));
        assert_eq!(choices.print(), "ring;allreduce:tree,ring;broadcast:^ring");
        assert_eq!(choices.names().count(), 4);
        assert!(Choices::parse("allreduce:tree").unwrap().allows("broadcast", "ring"));
        for bad in [";", "allreduce:", ":ring", "^"] {
            assert_eq!(Choices::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn endpoints_need_brackets_around_ipv6() {
        let parse = |text| Endpoint::parse(text).map(|endpoint| endpoint.print());
        for good in ["10.0.0.1:5000", "[fe80::1]:5000", "node-1:1"] {
            assert_eq!(parse(good).as_deref(), Some(good));
        }
        for bad in ["fe80::1:5000", "node", "node:0", ":1", "node:65536", "[]:1", "[::1:5"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn port_ranges_are_in_order() {
        assert_eq!(PortRange::parse("40000-40999").unwrap().view(), 40000..=40999);
        assert_eq!(PortRange::parse("7").unwrap().print(), "7-7");
        for bad in ["0", "9-8", "1-", "a-b", "1-70000"] {
            assert_eq!(PortRange::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn secrets_do_not_show() {
        let secret = Secret::parse("hunter2").unwrap();
        assert_eq!(secret.reveal(), "hunter2");
        assert!(!format!("{secret:?}{}", secret.print()).contains("hunter2"));
    }
}
