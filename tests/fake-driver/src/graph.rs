//! Graphs: nodes, each after others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::code::*;
use crate::state::{self, fresh};
use crate::stream::{self, Work, until};
use crate::symbols::{Out, put};
use crate::user_object::UserObject;

#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) keeps: Vec<Arc<UserObject>>,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) id: usize,
    pub(crate) kind: &'static str,
    /// The nodes that it waits for.
    pub(crate) before: Vec<usize>,
    pub(crate) work: Work,
}

/// A graph that is ready; what runs has its own reference to the nodes.
pub(crate) struct Exec {
    nodes: Arc<Vec<Node>>,
    keeps: Arc<Vec<Arc<UserObject>>>,
}

impl Exec {
    fn of(graph: &Graph) -> Self {
        Self { nodes: Arc::new(graph.nodes.clone()), keeps: Arc::new(graph.keeps.clone()) }
    }
}

pub(crate) fn graph(handle: usize) -> Answer<Arc<Mutex<Graph>>> {
    state::lock(|state| state.graphs.get(&handle).cloned()).ok_or(INVALID_HANDLE)
}

fn exec(handle: usize) -> Answer<Arc<Mutex<Exec>>> {
    state::lock(|state| state.execs.get(&handle).cloned()).ok_or(INVALID_HANDLE)
}

pub(crate) fn graph_destroy(handle: usize) -> Answer {
    state::lock(|state| state.graphs.remove(&handle)).map(drop).ok_or(INVALID_HANDLE)
}

pub(crate) fn graph_nodes(handle: usize, nodes: usize, count: Out<usize>) -> Answer {
    let graph = graph(handle)?;
    let graph = graph.lock().unwrap_or_else(PoisonError::into_inner);
    if nodes != 0 {
        let places = graph.nodes.iter().take(count.value()).enumerate();
        places.for_each(|(index, node)| put(nodes, index, node.id));
    }
    count.set(graph.nodes.len());
    Ok(())
}

pub(crate) fn graph_instantiate_with_flags(place: Out<usize>, handle: usize, _flags: u64) -> Answer {
    state::current()?;
    let exec = Exec::of(&graph(handle)?.lock().unwrap_or_else(PoisonError::into_inner));
    let handle = fresh();
    state::lock(|state| state.execs.insert(handle, Arc::new(Mutex::new(exec))));
    place.set(handle);
    Ok(())
}

pub(crate) fn graph_upload(handle: usize, stream: usize) -> Answer {
    stream::of(stream)?;
    exec(handle).map(drop)
}

pub(crate) fn graph_launch(handle: usize, stream: usize) -> Answer {
    let stream = stream::of(stream)?;
    let exec = exec(handle)?;
    let exec = exec.lock().unwrap_or_else(PoisonError::into_inner);
    let (nodes, keeps) = (exec.nodes.clone(), exec.keeps.clone());
    let work = move || {
        let _keeps = &keeps;
        run(&nodes)
    };
    stream.submit("graph", Arc::new(work))
}

pub(crate) fn graph_exec_update(handle: usize, from: usize, result: Out<i32>) -> Answer {
    let (exec, graph) = (exec(handle)?, graph(from)?);
    let mut exec = exec.lock().unwrap_or_else(PoisonError::into_inner);
    let new = Exec::of(&graph.lock().unwrap_or_else(PoisonError::into_inner));
    if shape(&exec.nodes) != shape(&new.nodes) {
        result.set(TOPOLOGY_CHANGED);
        return Err(UPDATE_FAILURE);
    }
    *exec = new;
    result.set(0);
    Ok(())
}

pub(crate) fn graph_exec_destroy(handle: usize) -> Answer {
    state::lock(|state| state.execs.remove(&handle)).map(drop).ok_or(INVALID_HANDLE)
}

/// Kinds and edges, by place.
fn shape(nodes: &[Node]) -> Vec<(&'static str, Vec<Option<usize>>)> {
    let place = |id: &usize| nodes.iter().position(|node| node.id == *id);
    nodes.iter().map(|node| (node.kind, node.before.iter().map(place).collect())).collect()
}

/// Runs every node after those it waits for. Nodes that need not wait for each other run at the same time, since kernels
/// of several ranks may wait for each other.
fn run(nodes: &[Node]) -> Answer {
    let is_chain = nodes.windows(2).all(|pair| pair[1].before.contains(&pair[0].id));
    if is_chain {
        return nodes.iter().try_for_each(|node| (node.work)());
    }
    let done: Vec<AtomicBool> = nodes.iter().map(|_| AtomicBool::new(false)).collect();
    let place = |id: usize| nodes.iter().position(|node| node.id == id);
    let one = |index: usize| {
        let before = nodes[index].before.iter().filter_map(|id| place(*id));
        before.for_each(|before| until(|| done[before].load(Ordering::Acquire)));
        let answer = (nodes[index].work)();
        done[index].store(true, Ordering::Release);
        answer
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..nodes.len()).map(|index| scope.spawn(move || one(index))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(UNKNOWN)))
    })
}

const TOPOLOGY_CHANGED: i32 = 2;
