//! Slurm's short forms: lists of nodes and of tasks per node.

/// The first host of a list such as `n[01-03,07],gpu1`; `None` if there is none.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list;
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        rest = &rest[end..];
        let Some(inner) = rest.strip_prefix('[') else { break };
        let (inside, after) = inner.split_once(']')?;
        // The least number comes first, with its leading zeros.
        name.push_str(inside.split([',', '-']).next()?);
        rest = after;
    }
    (!name.is_empty()).then_some(name)
}

/// How many tasks node number `node` has by a list such as `4(x2),3`.
pub(super) fn tasks_on_node(list: &str, node: usize) -> Option<u32> {
    let mut remaining = node;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if remaining < times {
            return tasks.trim().parse().ok();
        }
        remaining -= times;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("n[01-03,07],gpu1", "n01"),
            ("n[7,9]", "n7"),
            ("rack[1-2]node[05-09]", "rack1node05"),
            ("n[1-2]-ib,n9", "n1-ib"),
            ("a-b-c", "a-b-c"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_host(""), None);
        assert_eq!(first_host("n[1-2"), None);
    }

    #[test]
    fn tasks_per_node_are_repeated() {
        let tasks: Vec<_> = (0..5).map(|node| tasks_on_node("4(x2),3,1", node)).collect();
        assert_eq!(tasks, [Some(4), Some(4), Some(3), Some(1), None]);
        assert_eq!(tasks_on_node("4(x", 0), None);
        assert_eq!(tasks_on_node("", 0), None);
    }
}
