//! Which of the nodes that can take a pod is the best: each view gives 0 to 100, times its weight, as upstream.

use super::node::NodeInfo;
use super::pod::PodInfo;
use super::topology::Topology;

const BEST: i64 = 100;

/// Image sizes below the first do not matter, above the second (per container) no more.
const SMALL_IMAGE: i64 = 23 << 20;
const LARGE_IMAGE: i64 = 1000 << 20;

/// What is known of each node by others than this module; None where it does not matter to the pod.
#[derive(Default)]
pub struct Views {
    /// How crowded it is with pods like this one, where that says nothing itself of how they are to be spread.
    pub crowded: Option<Vec<i64>>,
    /// How much the pod prefers the devices that it would get there.
    pub devices: Option<Vec<i64>>,
}

/// The total score of each node.
pub fn scores(pod: &PodInfo, nodes: &[&NodeInfo], topology: &Topology<'_>, views: Views) -> Vec<i64> {
    let mut totals = vec![0; nodes.len()];
    let mut add = |weight: i64, scores: Vec<i64>| {
        totals.iter_mut().zip(scores).for_each(|(total, score)| *total += weight * score);
    };
    add(1, nodes.iter().map(|n| least_allocated(pod, n)).collect());
    if pod.requests.milli_cpu > 0 || pod.requests.memory > 0 {
        add(1, nodes.iter().map(|n| balanced(pod, n)).collect());
    }
    let soft = |node: &&NodeInfo| {
        let taints = node.offer.taints.iter().filter(|t| *t.effect == *"PreferNoSchedule");
        i64::try_from(taints.filter(|t| !pod.tolerates(t)).count()).unwrap_or(i64::MAX)
    };
    add(3, reversed(nodes.iter().map(soft).collect()));
    if !pod.preferred_nodes.is_empty() {
        let weight = |node: &&NodeInfo| {
            let fitting = pod.preferred_nodes.iter().filter(|(_, term)| term.matches(node.labels(), node.name()));
            fitting.map(|(weight, _)| weight).sum()
        };
        add(2, proportional(nodes.iter().map(weight).collect()));
    }
    if pod.spread.iter().any(|c| !c.required) {
        add(2, spread(&topology.crowding(pod, nodes)));
    }
    if let Some(crowded) = views.crowded {
        add(2, spread(&crowded.iter().map(|c| Some(*c as f64)).collect::<Vec<_>>()));
    }
    if topology.has_preferences() {
        add(2, between(&nodes.iter().map(|n| topology.preference(n)).collect::<Vec<_>>()));
    }
    if let Some(devices) = views.devices {
        add(2, proportional(devices));
    }
    add(1, nodes.iter().map(|n| image_locality(pod, n, nodes)).collect());
    totals
}

/// The more is left, the better.
fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let part = |has: i64, wants: i64| if has <= 0 || wants > has { 0 } else { (has - wants) * BEST / has };
    let (has, taken) = (&node.offer.allocatable, &node.assumed);
    let cpu = part(has.milli_cpu, taken.milli_cpu + pod.assumed.milli_cpu);
    let memory = part(has.memory, taken.memory.saturating_add(pod.assumed.memory));
    (cpu + memory) / 2
}

/// The closer CPU and memory are to being used to the same degree, the better.
fn balanced(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let part = |has: i64, wants: i64| if has <= 0 { 1.0 } else { (wants as f64 / has as f64).min(1.0) };
    let (has, taken) = (&node.offer.allocatable, &node.requested);
    let cpu = part(has.milli_cpu, taken.milli_cpu + pod.requests.milli_cpu);
    let memory = part(has.memory, taken.memory.saturating_add(pod.requests.memory));
    ((1.0 - (cpu - memory).abs() / 2.0) * BEST as f64) as i64
}

/// Images that are there already need not be pulled; weighted by how many nodes have them, so that one node does not
/// draw everything.
fn image_locality(pod: &PodInfo, node: &NodeInfo, nodes: &[&NodeInfo]) -> i64 {
    let size_on = |node: &NodeInfo, image: &str| node.offer.images.iter().find(|(n, _)| **n == *image).map(|(_, s)| *s);
    let mut sum = 0;
    for image in &pod.images {
        let name = normal_image(image);
        let Some(size) = size_on(node, &name) else { continue };
        let holders = nodes.iter().filter(|n| size_on(n, &name).is_some()).count();
        sum += (size as f64 * holders as f64 / nodes.len() as f64) as i64;
    }
    let largest = LARGE_IMAGE.saturating_mul(i64::try_from(pod.images.len()).unwrap_or(1)).max(LARGE_IMAGE);
    BEST * (sum.clamp(SMALL_IMAGE, largest) - SMALL_IMAGE) / (largest - SMALL_IMAGE)
}

fn normal_image(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || image.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}

fn proportional(scores: Vec<i64>) -> Vec<i64> {
    let largest = scores.iter().copied().max().unwrap_or(0);
    scores.into_iter().map(|s| if largest > 0 { s * BEST / largest } else { 0 }).collect()
}

fn reversed(scores: Vec<i64>) -> Vec<i64> {
    proportional(scores).into_iter().map(|s| BEST - s).collect()
}

fn between(scores: &[i64]) -> Vec<i64> {
    let (least, most) = (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
    scores.iter().map(|s| if most > least { BEST * (s - least) / (most - least) } else { 0 }).collect()
}

/// Fewer matching pods are better; nodes without the label get nothing.
fn spread(crowding: &[Option<f64>]) -> Vec<i64> {
    let known = || crowding.iter().flatten().copied();
    let (least, most) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
    let score = |c: &Option<f64>| match c {
        None => 0,
        Some(_) if most == 0.0 => BEST,
        Some(c) => (BEST as f64 * (most + least - c) / most) as i64,
    };
    crowding.iter().map(score).collect()
}
