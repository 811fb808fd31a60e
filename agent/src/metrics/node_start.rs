//! How long the parts of a node's start took: from the boot of the machine to a node that is ready.
//!
//! Followed: kubelet `util/node_startup_latency_tracker.go`. Only the first time counts: a node that registers anew does
//! not start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{NODE_STARTUP, NODE_STARTUP_PRE_AGENT, NODE_STARTUP_PRE_REGISTRATION, process};

static REGISTERS: AtomicBool = AtomicBool::new(false);
static READY: AtomicBool = AtomicBool::new(false);

/// Seconds since 1970.
fn now() -> Option<f64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

/// The agent is about to register its node.
pub fn node_registers() {
    if REGISTERS.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(started) = process::started() else { return };
    if let Some(boot) = process::boot() {
        NODE_STARTUP_PRE_AGENT.set(&[], (started - boot).max(0.0));
    }
    if let Some(now) = now() {
        NODE_STARTUP_PRE_REGISTRATION.set(&[], (now - started).max(0.0));
    }
}

/// The API server has a registered node that is ready.
pub fn node_is_ready() {
    if READY.swap(true, Ordering::Relaxed) {
        return;
    }
    if let (Some(now), Some(boot)) = (now(), process::boot()) {
        NODE_STARTUP.set(&[], (now - boot).max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Family, Value};

    #[test]
    fn the_parts_of_a_start_are_those_of_the_first() {
        let value = |family: &'static Family| match family.snapshot().unwrap().samples[0].value {
            Value::Number(n) => n,
            Value::Histogram { .. } => panic!("a number"),
        };
        node_registers();
        node_is_ready();
        let (before, until) = (value(&NODE_STARTUP_PRE_AGENT), value(&NODE_STARTUP_PRE_REGISTRATION));
        let all = value(&NODE_STARTUP);
        assert!(before > 0.0 && all >= before, "{before} {until} {all}");
        node_registers();
        node_is_ready();
        let again = (value(&NODE_STARTUP_PRE_REGISTRATION), value(&NODE_STARTUP));
        assert!((again.0 - until).abs() < f64::EPSILON && (again.1 - all).abs() < f64::EPSILON);
    }
}
