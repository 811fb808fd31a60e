//! Fields and words that need a feature gate: while it is off they are dropped or refused, unless the stored object uses
//! them already.
//!
//! The table is `gated.txt`; only its lines whose gate is off are kept, so that a write pays for those alone. Called by
//! the write path before defaults of strategies are set, for every subresource.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::config::FeatureGates;
use crate::field_error::{FieldError, Report, Rules};
use crate::resource::Resource;

const TABLE: &str = include_str!("gated.txt");

/// Where pods and templates for them have their spec.
const PODS: [(&str, &str); 9] = [
    ("core/pods", "spec"),
    ("core/podtemplates", "template.spec"),
    ("core/replicationcontrollers", "spec.template.spec"),
    ("apps/deployments", "spec.template.spec"),
    ("apps/replicasets", "spec.template.spec"),
    ("apps/daemonsets", "spec.template.spec"),
    ("apps/statefulsets", "spec.template.spec"),
    ("batch/jobs", "spec.template.spec"),
    ("batch/cronjobs", "spec.jobTemplate.spec.template.spec"),
];

const CONTAINERS: [&str; 3] = ["containers[]", "initContainers[]", "ephemeralContainers[]"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Member(&'static str),
    /// Every item of a list, or value of a map.
    Each,
}

/// A field of an object.
#[derive(Debug)]
struct Path {
    steps: Vec<Step>,
    /// Only where it has this member.
    having: Option<&'static str>,
    /// Its parent goes along where it is empty then.
    with_parent: bool,
}

#[derive(Debug)]
enum What {
    Fields,
    /// Words that are refused, and the others.
    Words(Vec<&'static str>, Vec<&'static str>),
}

/// A line of the table for one kind.
#[derive(Debug)]
struct Rule {
    paths: Vec<Path>,
    what: What,
}

/// What the gates that are off keep from being written, with its group, by the plural of the kind.
#[derive(Debug, Default)]
pub struct Gated(HashMap<&'static str, Vec<(&'static str, Rule)>>);

impl Path {
    fn parse(prefix: &'static str, text: &'static str) -> Self {
        let (text, having) = text.split_once('?').map_or((text, None), |(text, having)| (text, Some(having)));
        let (text, with_parent) = text.strip_suffix('^').map_or((text, false), |text| (text, true));
        let mut steps = Vec::new();
        for word in prefix.split('.').chain(text.split('.')).filter(|word| !word.is_empty()) {
            match word.strip_suffix("[]") {
                _ if word == "*" => steps.push(Step::Each),
                Some(list) => steps.extend([Step::Member(list), Step::Each]),
                None => steps.push(Step::Member(word)),
            }
        }
        Path { steps, having, with_parent }
    }

    /// Calls `look` with each value at the path, until it says that it is enough.
    fn any(&self, value: &Value, look: &mut dyn FnMut(&Value) -> bool) -> bool {
        fn walk(steps: &[Step], value: &Value, look: &mut dyn FnMut(&Value) -> bool) -> bool {
            match (steps.split_first(), value) {
                (None, value) => look(value),
                (Some((Step::Member(name), rest)), value) => {
                    value.get(*name).is_some_and(|inner| walk(rest, inner, look))
                }
                (Some((Step::Each, rest)), Value::Array(items)) => items.iter().any(|item| walk(rest, item, look)),
                (Some((Step::Each, rest)), Value::Object(map)) => map.values().any(|item| walk(rest, item, look)),
                _ => false,
            }
        }
        walk(&self.steps, value, look)
    }

    /// Removes the field wherever it is.
    fn remove(&self, value: &mut Value) {
        self.remove_from(&self.steps, value);
    }

    fn remove_from(&self, steps: &[Step], value: &mut Value) {
        match (steps, value) {
            ([Step::Member(name)], Value::Object(map)) => {
                let meant = |field: &Value| self.having.is_none_or(|member| is_said(&field[member]));
                if map.get(*name).is_some_and(meant) {
                    map.remove(*name);
                }
            }
            ([Step::Member(parent), last @ Step::Member(name)], Value::Object(map)) if self.with_parent => {
                let Some(inner) = map.get_mut(*parent) else { return };
                let had = inner.get(*name).is_some();
                self.remove_from(&[*last], inner);
                if had && inner.as_object().is_some_and(Map::is_empty) {
                    map.remove(*parent);
                }
            }
            ([Step::Member(name), rest @ ..], Value::Object(map)) => {
                if let Some(inner) = map.get_mut(*name) {
                    self.remove_from(rest, inner);
                }
            }
            ([Step::Each, rest @ ..], Value::Array(items)) => {
                items.iter_mut().for_each(|item| self.remove_from(rest, item));
            }
            ([Step::Each, rest @ ..], Value::Object(map)) => {
                map.values_mut().for_each(|item| self.remove_from(rest, item));
            }
            _ => {}
        }
    }

    /// Complains of each text at the path that is one of `words`.
    fn refuse(&self, report: &mut Report, value: &Value, words: &[&str], others: &[&str]) {
        fn walk(report: &mut Report, steps: &[Step], value: &Value, check: &dyn Fn(&mut Report, &Value)) {
            match (steps.split_first(), value) {
                (None, value) => check(report, value),
                (Some((Step::Member(name), rest)), value) => {
                    report.with(value, name, |report, inner| walk(report, rest, inner, check));
                }
                (Some((Step::Each, rest)), Value::Array(items)) => {
                    for (index, item) in items.iter().enumerate() {
                        report.index(index, |report| walk(report, rest, item, check));
                    }
                }
                _ => {}
            }
        }
        walk(report, &self.steps, value, &|report, value| {
            if let Some(word) = value.as_str().filter(|word| words.contains(word)) {
                report.not_supported(word, others);
            }
        });
    }
}

/// Whether a value says anything; an empty list says as much as none.
fn is_said(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

impl Rule {
    fn is_of_tolerations(&self) -> bool {
        matches!(&self.what, What::Words(words, _) if words.contains(&"Lt"))
    }

    /// Whether an object has any of it.
    fn used_by(&self, value: &Value) -> bool {
        self.paths.iter().any(|path| match &self.what {
            What::Fields => path.any(value, &mut is_said),
            What::Words(words, _) => path.any(value, &mut |v| v.as_str().is_some_and(|word| words.contains(&word))),
        })
    }
}

impl Gated {
    pub fn new(gates: &FeatureGates) -> Self {
        let mut out = Gated::default();
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let (Some(gate), Some(place), Some(what)) = (words.next(), words.next(), words.next()) else { continue };
            if gates.enabled(gate) {
                continue;
            }
            let (paths, refused) = what.split_once('=').map_or((what, None), |(path, words)| (path, Some(words)));
            let others = words.next().unwrap_or_default();
            let mut add = |place: &'static str, paths: Vec<Path>| {
                let what = match refused {
                    Some(words) => What::Words(words.split(',').collect(), others.split(',').collect()),
                    None => What::Fields,
                };
                let (group, plural) = place.split_once('/').unwrap_or(("", place));
                let group = if group == "core" { "" } else { group };
                out.0.entry(plural).or_default().push((group, Rule { paths, what }));
            };
            match place {
                "pod" => PODS.iter().for_each(|(place, spec)| {
                    add(place, paths.split(',').map(|path| Path::parse(spec, path)).collect());
                }),
                "container" => PODS.iter().for_each(|(place, spec)| {
                    let of_lists = CONTAINERS.iter().map(|list| {
                        let within = Path::parse(spec, list).steps;
                        let mut path = Path::parse("", paths);
                        path.steps.splice(0..0, within);
                        path
                    });
                    add(place, of_lists.collect());
                }),
                place => add(place, paths.split(',').map(|path| Path::parse("", path)).collect()),
            }
        }
        out
    }

    fn rules(&self, resource: &Resource) -> impl Iterator<Item = &Rule> {
        let of_kind = self.0.get(&*resource.plural).filter(|_| !resource.custom);
        of_kind.into_iter().flatten().filter(|(group, _)| *group == &*resource.group).map(|(_, rule)| rule)
    }

    /// Drops what an object may not say; `old` is the stored one, None on create.
    pub fn drop_fields(&self, resource: &Resource, new: &mut Value, old: Option<&Value>) {
        for rule in self.rules(resource).filter(|rule| matches!(rule.what, What::Fields)) {
            // Mostly there is nothing to drop, and the stored object need not be looked at.
            if rule.used_by(new) && !old.is_some_and(|old| rule.used_by(old)) {
                rule.paths.iter().for_each(|path| path.remove(new));
            }
        }
    }

    /// The rules for one object: operators of tolerations are looked at in their turn among all other rules.
    pub fn rules_for(&self, resource: &Resource, rules: Rules, old: Option<&Value>) -> Rules {
        match self.rules(resource).find(|rule| rule.is_of_tolerations()) {
            Some(rule) => Rules { compares_tolerations: old.is_some_and(|old| rule.used_by(old)), ..rules },
            None => rules,
        }
    }

    /// Every complaint about other words that need a gate.
    pub fn complaints(&self, resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut report = Report::default();
        for rule in self.rules(resource).filter(|rule| !rule.is_of_tolerations()) {
            if let What::Words(words, others) = &rule.what
                && rule.used_by(new)
                && !old.is_some_and(|old| rule.used_by(old))
            {
                rule.paths.iter().for_each(|path| path.refuse(&mut report, new, words, others));
            }
        }
        report.errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;
    use serde_json::json;

    fn gated(list: &[&str]) -> Gated {
        let list: Vec<String> = list.iter().map(|entry| (*entry).into()).collect();
        Gated::new(&FeatureGates::parse(&list).expect("known gates"))
    }

    fn dropped(gates: &[&str], (group, plural): (&str, &str), mut new: Value, old: Option<Value>) -> Value {
        let resource = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
        gated(gates).drop_fields(&resource, &mut new, old.as_ref());
        new
    }

    #[test]
    fn every_line_names_a_gate_and_a_kind() {
        let all = FeatureGates::parse(&[]).expect("defaults");
        let names: Vec<&str> = all.iter().map(|(name, _)| name).collect();
        let set = proto::schema::TypeSet::built_in();
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(words[0] == "never" || names.contains(&words[0]), "{line}");
            assert_eq!(words.len(), if words[2].contains('=') { 4 } else { 3 }, "{line}");
            let (group, plural) = match words[1] {
                "pod" | "container" => ("", "pods"),
                place => place.split_once('/').expect("a group and a plural"),
            };
            let group = if group == "core" { "" } else { group };
            // Kinds that only a gate brings are not in the registry.
            let kind = set.kinds.iter().find(|k| {
                let plain = k.kind.to_lowercase();
                let plural_of = if plain.ends_with("ss") { format!("{plain}es") } else { format!("{plain}s") };
                *k.group == *group && plural_of == plural
            });
            assert!(kind.is_some(), "no kind for {line}");
        }
    }

    #[test]
    fn a_field_whose_gate_is_off_is_dropped_from_pods_and_templates() {
        let spec = json!({"schedulingGroup": {"podGroupName": "g"}, "containers": [
            {"name": "a", "lifecycle": {"stopSignal": "SIGUSR1"}},
            {"name": "b", "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 1}}}}]});
        let left = json!({"containers": [{"name": "a"},
            {"name": "b", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]});
        let done = dropped(&[], ("", "pods"), json!({"spec": spec}), None);
        assert_eq!(done["spec"], left);
        let done = dropped(&[], ("apps", "deployments"), json!({"spec": {"template": {"spec": spec}}}), None);
        assert_eq!(done["spec"]["template"]["spec"], left);
        let job = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}});
        assert_eq!(
            dropped(&[], ("batch", "cronjobs"), job, None)["spec"]["jobTemplate"]["spec"]["template"]["spec"],
            left
        );
        let on = ["GenericWorkload=true", "ContainerStopSignals=true"];
        assert_eq!(dropped(&on, ("", "pods"), json!({"spec": spec}), None)["spec"], spec);
    }

    #[test]
    fn what_is_stored_already_may_stay_and_change() {
        let lease = |spec: Value| json!({"spec": spec});
        let leases = ("coordination.k8s.io", "leases");
        let new = lease(json!({"strategy": "OldestEmulationVersion", "preferredHolder": "a"}));
        let old = lease(json!({"strategy": "Other"}));
        let left = lease(json!({"strategy": "OldestEmulationVersion"}));
        assert_eq!(dropped(&[], leases, new.clone(), Some(old)), left);
        assert_eq!(dropped(&[], leases, new, None), lease(json!({})));
    }

    #[test]
    fn sources_in_other_namespaces_are_dropped_whole() {
        let claims = ("", "persistentvolumeclaims");
        let claim = |source: Value| json!({"spec": {"dataSourceRef": source}});
        let other = json!({"kind": "PersistentVolumeClaim", "name": "a", "namespace": "other"});
        let own = json!({"kind": "PersistentVolumeClaim", "name": "a"});
        assert_eq!(dropped(&[], claims, claim(other.clone()), None), json!({"spec": {}}));
        assert_eq!(dropped(&[], claims, claim(own.clone()), None), claim(own.clone()));
        assert_eq!(dropped(&[], claims, claim(other.clone()), Some(claim(own))), claim(other.clone()));
        assert_eq!(dropped(&["CrossNamespaceVolumeDataSource=true"], claims, claim(other.clone()), None), claim(other));
    }

    #[test]
    fn values_of_maps_are_reached_and_some_fields_never_come_in() {
        let slice = json!({"spec": {"devices": [{"name": "d", "attributes": {"a": {"ints": [1]}, "b": {"int": 1}}}]}});
        let done = dropped(&[], ("resource.k8s.io", "resourceslices"), slice, None);
        assert_eq!(done["spec"]["devices"][0]["attributes"], json!({"a": {}, "b": {"int": 1}}));
        let node = json!({"spec": {"configSource": {"configMap": {}}}, "status": {"config": {}, "phase": "x"}});
        let done = dropped(&["AllAlpha=true"], ("", "nodes"), node, None);
        assert_eq!(done, json!({"spec": {}, "status": {"phase": "x"}}));
    }

    #[test]
    fn words_of_a_gate_are_refused_where_they_are() {
        let resource = Resources::built_in().current().lookup("", "v1", "pods").expect("built in");
        let rules = |action: &str| json!([{"action": "Restart"}, {"action": action}]);
        let pod = json!({"spec": {"containers": [{"restartPolicyRules": rules("RestartAllContainers")}]}});
        let said = gated(&["RestartAllContainersOnContainerExits=false"]).complaints(&resource, &pod, None);
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].field, "spec.containers[0].restartPolicyRules[1].action");
        assert_eq!(said[0].message, "Unsupported value: \"RestartAllContainers\": supported values: \"Restart\"");
        let off = gated(&["RestartAllContainersOnContainerExits=false"]);
        assert!(off.complaints(&resource, &pod, Some(&pod)).is_empty());
        let on = gated(&["RestartAllContainersOnContainerExits=true"]);
        assert!(on.complaints(&resource, &pod, None).is_empty());
    }

    /// A toleration that compares was complained of twice, and after everything else.
    #[test]
    fn operators_of_tolerations_are_looked_at_in_their_turn() {
        let resource = Resources::built_in().current().lookup("", "v1", "pods").expect("built in");
        let pod = json!({"spec": {"tolerations": [{"key": "k", "operator": "Lt", "value": "x"}, {"key": "-"}]}});
        let told = |gates: &[&str], old: Option<&Value>| {
            let gated = gated(gates);
            let all = Rules { compares_tolerations: true, ..Rules::default() };
            assert!(gated.complaints(&resource, &pod, None).is_empty());
            let mut report = Report::by(gated.rules_for(&resource, all, old));
            report.at("spec", |r| crate::validate::tolerations(r, &pod["spec"]));
            report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect::<Vec<_>>()
        };
        let off = told(&[], None);
        let said = "spec.tolerations[0].operator: Unsupported value: \"Lt\": supported values: \"Equal\", \"Exists\"";
        assert_eq!(off[0], said);
        assert!(off[1].starts_with("spec.tolerations[1].key: "), "{off:?}");
        for on in [told(&["TaintTolerationComparisonOperators=true"], None), told(&[], Some(&pod))] {
            let said =
                "spec.tolerations[0].value: Invalid value: \"x\": must be a valid decimal integer in canonical form";
            assert_eq!(on[0], said);
            assert_eq!(on.len(), off.len());
        }
    }
}
