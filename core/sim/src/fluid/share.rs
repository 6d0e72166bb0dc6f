//! Flows on shared links: who gets how much.

/// All flows under way, and the links they share.
pub(super) struct Shares {
    links: Vec<Shared>,
    /// By edge: the links on its way, and the most it can use, in bytes per nanosecond.
    routes: Vec<(Vec<u32>, f64)>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// Flows that have no rate yet, and links on which something changed.
    begun: Vec<u32>,
    changed: Vec<u32>,
    /// Counts the times that rates were worked out, to mark what was visited.
    round: u32,
}

struct Shared {
    capacity: f64,
    /// What its flows could use together.
    wanted: f64,
    flows: Vec<u32>,
    seen: u32,
    /// While rates are worked out: what is left, and the flows that have no rate yet.
    left: f64,
    open: u32,
}

struct Flow {
    edge: u32,
    lane: u32,
    left_bytes: f64,
    /// Bytes per nanosecond since `since_ps`.
    rate: f64,
    since_ps: u64,
    version: u32,
    seen: u32,
    live: bool,
    fixed: bool,
}

impl Shares {
    pub(super) fn new(gb_per_s: &[f64]) -> Shares {
        let link = |capacity: &f64| Shared {
            capacity: *capacity,
            wanted: 0.0,
            flows: Vec::new(),
            seen: 0,
            left: 0.0,
            open: 0,
        };
        Shares {
            links: gb_per_s.iter().map(link).collect(),
            routes: Vec::new(),
            flows: Vec::new(),
            free: Vec::new(),
            begun: Vec::new(),
            changed: Vec::new(),
            round: 0,
        }
    }

    /// Adds the way of the next edge.
    pub(super) fn add_route(&mut self, mut links: Vec<u32>, most: f64) {
        links.retain(|link| self.links[*link as usize].capacity.is_finite());
        self.routes.push((links, most));
    }

    /// Begins a flow on an edge.
    pub(super) fn begin(&mut self, edge: u32, lane: u32, bytes: f64, now_ps: u64) {
        let flow = self.free.pop().unwrap_or(self.flows.len() as u32);
        let version = self.flows.get(flow as usize).map_or(0, |flow| flow.version + 1);
        let new = Flow {
            edge,
            lane,
            left_bytes: bytes,
            rate: 0.0,
            since_ps: now_ps,
            version,
            seen: 0,
            live: true,
            fixed: false,
        };
        match self.flows.get_mut(flow as usize) {
            Some(slot) => *slot = new,
            None => self.flows.push(new),
        }
        let (route, most) = &self.routes[edge as usize];
        for link in route {
            let shared = &mut self.links[*link as usize];
            shared.wanted += most;
            shared.flows.push(flow);
            if shared.is_short() {
                self.changed.push(*link);
            }
        }
        self.begun.push(flow);
    }

    /// Ends a flow if this is its version, and says whose it was.
    pub(super) fn end(&mut self, flow: u32, version: u32) -> Option<u32> {
        let ended = &mut self.flows[flow as usize];
        if ended.version != version || !ended.live {
            return None;
        }
        ended.live = false;
        let (lane, edge) = (ended.lane, ended.edge);
        let (route, most) = &self.routes[edge as usize];
        for link in route {
            let shared = &mut self.links[*link as usize];
            if shared.is_short() {
                self.changed.push(*link);
            }
            shared.flows.retain(|other| *other != flow);
            shared.wanted = if shared.flows.is_empty() { 0.0 } else { shared.wanted - most };
        }
        self.free.push(flow);
        Some(lane)
    }

    /// Works out the rates that have changed, and says when each such flow will end.
    pub(super) fn settle(&mut self, now_ps: u64, mut ends: impl FnMut(u64, u32, u32)) {
        if self.begun.is_empty() && self.changed.is_empty() {
            return;
        }
        self.round += 1;
        let (flows, links) = self.reached();
        for (flow, rate) in self.fill(&flows, &links) {
            let flow_at = &mut self.flows[flow as usize];
            if (flow_at.rate - rate).abs() <= SAME * rate {
                continue;
            }
            let gone_ns = (now_ps - flow_at.since_ps) as f64 / super::PS_PER_NS;
            flow_at.left_bytes = (flow_at.left_bytes - gone_ns * flow_at.rate).max(0.0);
            (flow_at.rate, flow_at.since_ps) = (rate, now_ps);
            flow_at.version += 1;
            ends(now_ps + super::ps(flow_at.left_bytes / rate), flow, flow_at.version);
        }
    }

    /// The flows whose rates may have changed, and the short links that connect them.
    fn reached(&mut self) -> (Vec<u32>, Vec<u32>) {
        let round = self.round;
        let mut flows: Vec<u32> = Vec::new();
        let mut links: Vec<u32> = Vec::new();
        for link in std::mem::take(&mut self.changed) {
            if std::mem::replace(&mut self.links[link as usize].seen, round) != round {
                links.push(link);
            }
        }
        for flow in std::mem::take(&mut self.begun) {
            self.flows[flow as usize].seen = round;
            flows.push(flow);
        }
        let (mut next_flow, mut next_link) = (0, 0);
        while next_flow < flows.len() || next_link < links.len() {
            if let Some(link) = links.get(next_link) {
                next_link += 1;
                for flow in &self.links[*link as usize].flows {
                    if std::mem::replace(&mut self.flows[*flow as usize].seen, round) != round {
                        flows.push(*flow);
                    }
                }
                continue;
            }
            let edge = self.flows[flows[next_flow] as usize].edge;
            next_flow += 1;
            for link in &self.routes[edge as usize].0 {
                let shared = &mut self.links[*link as usize];
                if shared.is_short() && std::mem::replace(&mut shared.seen, round) != round {
                    links.push(*link);
                }
            }
        }
        links.retain(|link| self.links[*link as usize].is_short());
        (flows, links)
    }

    /// Raises all rates together; who reaches the most it can use, or is on a link that is full, stays.
    fn fill(&mut self, flows: &[u32], links: &[u32]) -> Vec<(u32, f64)> {
        for link in links {
            let shared = &mut self.links[*link as usize];
            (shared.left, shared.open) = (shared.capacity, shared.flows.len() as u32);
        }
        flows.iter().for_each(|flow| self.flows[*flow as usize].fixed = false);
        let mut open: Vec<u32> = flows.to_vec();
        let mut rates = Vec::with_capacity(flows.len());
        while !open.is_empty() {
            let share = |link: &u32| {
                let shared = &self.links[*link as usize];
                if shared.open > 0 { shared.left.max(0.0) / f64::from(shared.open) } else { f64::INFINITY }
            };
            let fair = links.iter().map(share).fold(f64::INFINITY, f64::min);
            let most = |flow: &u32| self.routes[self.flows[*flow as usize].edge as usize].1;
            let level = open.iter().map(most).fold(fair, f64::min) * (1.0 + SAME);
            let full: Vec<u32> = links.iter().copied().filter(|link| share(link) <= level).collect();
            let mut still_open = Vec::with_capacity(open.len());
            let stays: Vec<bool> = {
                self.round += 1;
                full.iter().for_each(|link| self.links[*link as usize].seen = self.round);
                let held = |flow: &u32| {
                    let (route, most) = &self.routes[self.flows[*flow as usize].edge as usize];
                    *most <= level || route.iter().any(|link| self.links[*link as usize].seen == self.round)
                };
                open.iter().map(held).collect()
            };
            for (flow, stays) in open.into_iter().zip(stays) {
                if !stays {
                    still_open.push(flow);
                    continue;
                }
                let (route, most) = &self.routes[self.flows[flow as usize].edge as usize];
                let rate = most.min(level / (1.0 + SAME));
                for link in route {
                    let shared = &mut self.links[*link as usize];
                    (shared.left, shared.open) = (shared.left - rate, shared.open.saturating_sub(1));
                }
                rates.push((flow, rate));
            }
            open = still_open;
        }
        rates
    }
}

impl Shared {
    /// Whether its flows could use more than it has.
    fn is_short(&self) -> bool {
        self.wanted > self.capacity * (1.0 + SAME)
    }
}

/// Rates closer than this are equal.
const SAME: f64 = 1e-9;
