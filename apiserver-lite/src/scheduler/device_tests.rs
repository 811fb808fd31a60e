//! Which devices a search gives away, and which it must not.

use std::sync::Arc;

use serde_json::{Value, json};

use super::devices::{Features, Inventory};
use super::node::NodeInfo;
use super::search::{Demand, allocate};
use super::shares::Used;

const DRIVER: &str = "d.example.com";

fn slice(name: &str, node: &str, generation: i64, count: i64, devices: Value) -> Arc<Value> {
    Arc::new(json!({"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": count}}}))
}

fn class(name: &str) -> Option<Arc<Value>> {
    let spec = json!({"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]});
    (name == "c").then(|| Arc::new(json!({ "spec": spec })))
}

/// One request in the words of `exactly`.
fn one(mut wish: Value) -> Value {
    wish["deviceClassName"] = "c".into();
    json!({"devices": {"requests": [{"name": "r", "exactly": wish}]}})
}

const ALL: Features = Features { shares: true, conditions: true, nominates: true };

/// Names of the devices that each claim gets on node `n`, where some are given away already.
fn ask(slices: &[Arc<Value>], claims: &[Value], used: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let result = |name: &&str| json!({"driver": DRIVER, "pool": "n", "device": name});
    ask_beside(slices, claims, &used.iter().map(result).collect::<Vec<_>>(), ALL)
}

/// The same, with results of allocations.
fn ask_beside(
    slices: &[Arc<Value>],
    claims: &[Value],
    results: &[Value],
    features: Features,
) -> Result<Vec<Vec<String>>, String> {
    let demands: Vec<Demand> = claims.iter().map(|c| Demand::read(c, class)).collect::<Result<_, _>>()?;
    let inventory = Inventory::of(slices.to_vec(), features);
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let node = NodeInfo { object: Some(super::tests::object("nodes", object)), ..NodeInfo::default() };
    let reachable = inventory.at(&node);
    let mut used = Used::default();
    used.add(&json!({"devices": {"results": results}}), features);
    let chosen = allocate(&demands, &reachable, &used)?;
    let name = |at: usize| reachable.devices[at].id.device.to_string();
    Ok(chosen.iter().map(|claim| claim.iter().map(|c| name(c.device)).collect()).collect())
}

fn plain(names: &[&str]) -> Value {
    names.iter().map(|name| json!({ "name": name })).collect()
}

#[test]
fn pools_are_used_whole_and_in_their_newest_generation() {
    let want = [one(json!({}))];
    let old = slice("old", "n", 1, 1, plain(&["old"]));
    let new = slice("new", "n", 2, 1, plain(&["new"]));
    assert_eq!(ask(&[old.clone(), new.clone()], &want, &[]), Ok(vec![vec!["new".into()]]));
    assert_eq!(ask(&[new, old], &want, &[]), Ok(vec![vec!["new".into()]]), "in any order");
    let half = slice("half", "n", 3, 2, plain(&["half"]));
    assert!(ask(std::slice::from_ref(&half), &want, &[]).is_err());
    let all = [one(json!({"allocationMode": "All"}))];
    let why = ask(&[half], &all, &[]).expect_err("nobody knows what all are");
    assert!(why.ends_with("asks for all devices, but resource pool n is currently being updated"), "{why}");
    let twice = [slice("one", "n", 1, 2, plain(&["a", "b"])), slice("two", "n", 1, 2, plain(&["b"]))];
    assert!(ask(&twice, &want, &[]).is_err(), "a name twice");
    let elsewhere = slice("far", "m", 1, 1, plain(&["far"]));
    assert!(ask(&[elsewhere], &want, &[]).is_err());
}

#[test]
fn nothing_is_given_twice() {
    let slices = [slice("s", "n", 1, 1, plain(&["a", "b", "c"]))];
    let (first, two) = (one(json!({})), one(json!({"count": 2})));
    assert_eq!(
        ask(&slices, &[first.clone(), two.clone()], &[]),
        Ok(vec![vec!["a".into()], vec!["b".into(), "c".into()]])
    );
    assert_eq!(ask(&slices, std::slice::from_ref(&two), &["b"]), Ok(vec![vec!["a".into(), "c".into()]]));
    assert!(ask(&slices, &[first, two], &["b"]).is_err());
    // Who administers sees what others have, each device once.
    let admin = one(json!({"adminAccess": true, "count": 3}));
    assert_eq!(ask(&slices, &[admin], &["b"]), Ok(vec![vec!["a".into(), "b".into(), "c".into()]]));
    let admin = one(json!({"adminAccess": true, "count": 4}));
    assert!(ask(&slices, &[admin], &[]).is_err());
}

#[test]
fn all_is_all_or_nothing() {
    let all = [one(json!({"allocationMode": "All"}))];
    let slices = [slice("s", "n", 1, 1, plain(&["a", "b"]))];
    assert_eq!(ask(&slices, &all, &[]), Ok(vec![vec!["a".into(), "b".into()]]));
    assert!(ask(&slices, &all, &["b"]).is_err());
    let tainted = json!([{"name": "a"}, {"name": "b", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}]);
    let slices = [slice("s", "n", 1, 1, tainted)];
    assert!(ask(&slices, &all, &[]).is_err());
    assert_eq!(ask(&slices, &[one(json!({}))], &[]), Ok(vec![vec!["a".into()]]));
    assert!(ask(&slices, &[one(json!({"adminAccess": true}))], &["a"]).is_ok());
    assert!(
        ask(&slices, &[one(json!({"adminAccess": true, "count": 2}))], &[]).is_err(),
        "administrators bear no taints"
    );
    let tolerations = json!([{"key": "k", "operator": "Exists"}]);
    let all = [one(json!({"allocationMode": "All", "tolerations": tolerations}))];
    assert!(ask(&slices, &all, &[]).is_ok());
    let shared = json!([{"name": "a"}, {"name": "b", "allowMultipleAllocations": true}]);
    let shared = [slice("s", "n", 1, 1, shared)];
    assert_eq!(ask(&shared, &[one(json!({"allocationMode": "All"}))], &[]), Ok(vec![vec!["a".into(), "b".into()]]));
}

#[test]
fn a_claim_has_no_more_than_its_status_can_say() {
    let names: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let slices = [slice("s", "n", 1, 1, plain(&names))];
    let got = ask(&slices, &[one(json!({"count": 32}))], &[]).expect("as many as may be");
    assert_eq!(got[0].len(), 32);
    let why = ask(&slices, &[one(json!({"count": 33}))], &[]).expect_err("one too many");
    assert_eq!(why, "more than the 32 devices that a claim may have");
    assert!(ask(&slices, &[one(json!({"allocationMode": "All"}))], &[]).is_err());
}

/// A device that can be had whole or in halves, and one more beside it.
fn parts() -> [Arc<Value>; 2] {
    let draws = |memory: &str| json!([{"counterSet": "gpu", "counters": {"memory": {"value": memory}}}]);
    let devices = json!([{"name": "whole", "consumesCounters": draws("40Gi")},
        {"name": "half-1", "consumesCounters": draws("20Gi")}, {"name": "half-2", "consumesCounters": draws("20Gi")},
        {"name": "other"}]);
    let mut counters = (*slice("counters", "n", 1, 2, Value::Null)).clone();
    counters["spec"]["sharedCounters"] = json!([{"name": "gpu", "counters": {"memory": {"value": "40Gi"}}}]);
    [slice("devices", "n", 1, 2, devices), Arc::new(counters)]
}

#[test]
fn parts_of_a_device_are_given_as_long_as_its_counters_last() {
    let slices = parts();
    let one_each = |count: usize| vec![one(json!({})); count];
    let names = |all: &[&str]| all.iter().map(|n| vec![(*n).to_owned()]).collect::<Vec<_>>();
    assert_eq!(ask(&slices, &one_each(2), &[]), Ok(names(&["whole", "other"])), "nothing is left beside the whole");
    assert_eq!(ask(&slices, &one_each(3), &[]), Ok(names(&["half-1", "half-2", "other"])));
    assert!(ask(&slices, &one_each(4), &[]).is_err());
    assert_eq!(ask(&slices, &one_each(1), &["half-2"]), Ok(names(&["half-1"])), "a half is gone, so the whole is");
    assert_eq!(ask(&slices, &one_each(1), &["whole"]), Ok(names(&["other"])));
    assert!(ask(&slices, &one_each(2), &["whole"]).is_err());
    assert!(ask(&slices, &[one(json!({"allocationMode": "All"}))], &[]).is_err(), "not everything at once");
    // Who administers draws nothing.
    let admin = one(json!({"adminAccess": true, "count": 3}));
    assert!(ask(&slices, &[admin, one(json!({}))], &[]).is_ok());
}

#[test]
fn a_pool_whose_devices_draw_on_what_is_not_there_is_not_used() {
    let [devices, counters] = parts();
    let mut alone = (*devices).clone();
    alone["spec"]["pool"]["resourceSliceCount"] = 1.into();
    assert!(ask(&[Arc::new(alone)], &[one(json!({}))], &[]).is_err(), "no such counters");
    let mut twice = (*counters).clone();
    let set = twice["spec"]["sharedCounters"][0].clone();
    twice["spec"]["sharedCounters"] = json!([set, set]);
    assert!(ask(&[devices, Arc::new(twice)], &[one(json!({}))], &[]).is_err(), "a set twice");
}

#[test]
fn constraints_and_alternatives_are_tried_until_one_fits() {
    let device = |name: &str, board: i64| json!({"name": name, "attributes": {"board": {"int": board}}});
    let slices = [slice("s", "n", 1, 1, json!([device("a", 1), device("b", 2), device("c", 2)]))];
    let claim = |constraints: Value, count: i64| {
        let mut claim = one(json!({"count": count}));
        claim["devices"]["constraints"] = constraints;
        [claim]
    };
    let same = json!([{"matchAttribute": "d.example.com/board"}]);
    assert_eq!(ask(&slices, &claim(same.clone(), 2), &[]), Ok(vec![vec!["b".into(), "c".into()]]));
    assert!(ask(&slices, &claim(same, 3), &[]).is_err());
    let other = json!([{"distinctAttribute": "d.example.com/board"}]);
    assert_eq!(ask(&slices, &claim(other, 2), &[]), Ok(vec![vec!["a".into(), "b".into()]]));
    assert!(ask(&slices, &claim(json!([{"laterAttribute": "x"}]), 1), &[]).is_err(), "not known, so not kept");
    assert_eq!(
        ask(&slices, &[json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "none"}}]}})], &[]),
        Err("request r: device class none does not exist".into())
    );
}

#[test]
fn a_device_serves_as_many_claims_as_its_capacity_lasts() {
    let memory = |policy: Value| json!({"memory": {"value": "10Gi", "requestPolicy": policy}});
    let range = json!({"default": "1Gi", "validRange": {"min": "2Gi", "step": "2Gi"}});
    let device = json!([{"name": "a", "allowMultipleAllocations": true, "capacity": memory(range)},
        {"name": "b", "capacity": {"memory": {"value": "4Gi"}}}]);
    let slices = [slice("s", "n", 1, 1, device)];
    let asks = |amount: &str| one(json!({"capacity": {"requests": {"memory": amount}}}));
    let names = |all: &[&str]| Ok(all.iter().map(|n| vec![(*n).to_owned()]).collect::<Vec<_>>());
    assert_eq!(ask(&slices, &[asks("5Gi"), asks("4Gi")], &[]), names(&["a", "a"]), "6 and 4");
    assert_eq!(ask(&slices, &[asks("5Gi"), asks("5Gi")], &[]).ok(), None, "6 and 6, and the other has 4");
    assert_eq!(ask(&slices, &[asks("6Gi"), asks("4Gi"), asks("3Gi")], &[]), names(&["a", "a", "b"]));
    let share = |amount: &str| {
        json!({"driver": DRIVER, "pool": "n", "device": "a", "shareID": "x",
        "consumedCapacity": {"memory": amount}})
    };
    let beside = |claims: &[Value], amounts: &[&str]| {
        let results: Vec<Value> = amounts.iter().map(|a| share(a)).collect();
        ask_beside(&slices, claims, &results, ALL)
    };
    assert_eq!(beside(&[asks("4Gi")], &["2Gi", "4Gi"]), names(&["a"]));
    assert_eq!(beside(&[asks("4Gi")], &["2Gi", "6Gi"]), names(&["b"]));
    assert!(beside(&[asks("6Gi")], &["2Gi", "4Gi"]).is_err());
    assert!(ask(&slices, &[one(json!({"capacity": {"requests": {"cores": "1"}}}))], &[]).is_err(), "nobody has cores");
    // Who asks for all has those that have enough.
    let all = |amount: &str| one(json!({"allocationMode": "All", "capacity": {"requests": {"memory": amount}}}));
    assert_eq!(ask(&slices, &[all("6Gi")], &[]), names(&["a"]));
    assert_eq!(ask(&slices, &[all("2Gi")], &[]), Ok(vec![vec!["a".into(), "b".into()]]));
    // One that a claim has for itself from before is not shared, and with the feature off none is.
    assert_eq!(ask(&slices, &[asks("2Gi")], &["a"]), names(&["b"]));
    let off = Features { shares: false, conditions: true, nominates: true };
    let plain = [one(json!({})), one(json!({})), one(json!({}))];
    assert!(ask_beside(&slices, &plain, &[], off).is_err());
    assert_eq!(ask_beside(&slices, &plain[..2], &[], off), names(&["a", "b"]));
}

#[test]
fn shares_of_a_device_draw_on_counters_once() {
    let draws = json!([{"counterSet": "gpu", "counters": {"memory": {"value": "20Gi"}}}]);
    let policy = json!({"default": "1", "validRange": {"min": "1"}});
    let shared = json!({"name": "a", "allowMultipleAllocations": true, "consumesCounters": draws,
        "capacity": {"slots": {"value": "2", "requestPolicy": policy}}});
    let [devices, counters] = parts();
    let mut devices = (*devices).clone();
    devices["spec"]["devices"] =
        json!([shared, {"name": "b", "consumesCounters": draws}, {"name": "c", "consumesCounters": draws}]);
    let slices = [Arc::new(devices), counters];
    let claims = |count: usize| vec![one(json!({})); count];
    let names = |all: &[&str]| Ok(all.iter().map(|n| vec![(*n).to_owned()]).collect::<Vec<_>>());
    assert_eq!(ask(&slices, &claims(3), &[]), names(&["a", "a", "b"]));
    assert!(ask(&slices, &claims(4), &[]).is_err(), "40 of 40 are drawn");
    let share =
        json!({"driver": DRIVER, "pool": "n", "device": "a", "shareID": "x", "consumedCapacity": {"slots": "1"}});
    let beside = |count| ask_beside(&slices, &claims(count), std::slice::from_ref(&share), ALL);
    assert_eq!(beside(2), names(&["a", "b"]));
    assert!(beside(3).is_err());
}

#[test]
fn devices_that_have_to_be_made_ready_come_last() {
    let conditional = json!([{"name": "a", "bindsToNode": true, "bindingConditions": ["ready"],
        "bindingFailureConditions": ["failed"]}]);
    let mut first = (*slice("first", "n", 1, 1, conditional)).clone();
    first["spec"]["pool"]["name"] = "a".into();
    let slices = [Arc::new(first), slice("second", "n", 1, 1, plain(&["b"]))];
    let claims = [one(json!({})), one(json!({}))];
    let names = |all: &[&str]| Ok(all.iter().map(|n| vec![(*n).to_owned()]).collect::<Vec<_>>());
    assert_eq!(ask(&slices, &claims, &[]), names(&["b", "a"]));
    let off = Features { shares: true, conditions: false, nominates: true };
    assert!(ask_beside(&slices, &claims, &[], off).is_err());
}
