//! Claims of a set's pods: made with them, and owned by the set or by a pod that goes as the set's retention policy says.
//! Follows `stateful_set_utils.go` of upstream.

use serde_json::{Value, json};

use super::super::ownership::{self, OwnerKind, STATEFUL_SET};
use super::{COMPONENT, Plan, StatefulSets};
use crate::client::unchanged;
use crate::status::Result;
use crate::store::ObjectRef;

pub const CLAIMS: &str = "persistentvolumeclaims";
const POD: OwnerKind = OwnerKind { kind: "Pod", api_version: "v1", resource: "pods" };

/// The name of the claim that a pod has for a template.
pub fn claim_name(plan: &Plan, template: &Value, number: i64) -> String {
    format!("{}-{}-{number}", template["metadata"]["name"].as_str().unwrap_or_default(), plan.set.key.name)
}

/// Whether a claim has a name that [`claim_name`] gives for some template and number.
pub fn may_be_of(set: &str, claim: &str) -> bool {
    let Some((start, number)) = claim.rsplit_once('-') else { return false };
    let template = start.strip_suffix(set).and_then(|template| template.strip_suffix('-'));
    template.is_some_and(|template| !template.is_empty()) && number.bytes().all(|b| b.is_ascii_digit())
}

/// Names of a pod's claims.
fn names(plan: &Plan, number: i64) -> impl Iterator<Item = String> {
    let templates = plan.value["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    templates.map(move |template| claim_name(plan, template, number))
}

impl StatefulSets {
    /// Makes the claims that are not there. They outlive the pod.
    pub(super) async fn create_claims(&self, plan: &Plan, number: i64) -> Result<()> {
        for template in plan.value["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
            let name = claim_name(plan, template, number);
            if self.client.get(CLAIMS, &plan.set.key.namespace, &name).is_some() {
                continue;
            }
            let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
            let selected = plan.value["spec"]["selector"]["matchLabels"].as_object().cloned().unwrap_or_default();
            labels.extend(selected);
            let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "labels": labels}, "spec": template["spec"]});
            if !template["metadata"]["annotations"].is_null() {
                claim["metadata"]["annotations"] = template["metadata"]["annotations"].clone();
            }
            match self.client.create(CLAIMS, &plan.set.key.namespace, claim).await {
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    let text =
                        format!("create Claim {name} Pod {0}-{number} in StatefulSet {0} success", plan.set.key.name);
                    self.recorder.say(COMPONENT, STATEFUL_SET.about(&plan.set), "SuccessfulCreate", text);
                }
            }
        }
        Ok(())
    }

    /// Gives the claims of a pod the owners that the retention policy asks for; whether any changed.
    pub(super) async fn keep_claims(&self, plan: &Plan, pod: &ObjectRef, number: i64) -> Result<bool> {
        let policy = Policy::of(plan, number);
        let set = STATEFUL_SET.reference(&plan.set);
        let pod = POD.reference(pod);
        let mut any = false;
        for name in names(plan, number) {
            let namespace = &plan.set.key.namespace;
            let Some(claim) = self.client.get(CLAIMS, namespace, &name) else { continue };
            if policy.owners(&owners(&claim.value()), &set, &pod).is_none() {
                continue;
            }
            let written = self.client.update(CLAIMS, namespace, &name, |value| {
                let Some(wanted) = policy.owners(&owners(value), &set, &pod) else { return Err(unchanged()) };
                match (wanted.is_empty(), value["metadata"].as_object_mut()) {
                    (true, Some(metadata)) => drop(metadata.remove("ownerReferences")),
                    _ => value["metadata"]["ownerReferences"] = wanted.into(),
                }
                Ok(())
            });
            any |= ownership::done(written.await.map(|_| ()))?;
        }
        Ok(any)
    }

    /// Whether a claim that a new pod would get belongs to an earlier one of its name, and will go with that one.
    pub(super) fn claims_stale(&self, plan: &Plan, number: i64) -> bool {
        if !Policy::of(plan, number).when_scaled {
            return false;
        }
        let pod = format!("{}-{number}", plan.set.key.name);
        let mut claims = names(plan, number).filter_map(|name| self.client.get(CLAIMS, &plan.set.key.namespace, &name));
        claims.any(|claim| {
            let is_pod = |o: &Value| o["apiVersion"] == "v1" && o["kind"] == "Pod" && o["name"] == pod.as_str();
            owners(&claim.value()).iter().any(is_pod)
        })
    }
}

fn owners(claim: &Value) -> Vec<Value> {
    claim["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default()
}

/// What becomes of a pod's claims.
struct Policy {
    /// They go with the set.
    when_deleted: bool,
    /// They go with a pod that is one too many.
    when_scaled: bool,
    /// The pod is one too many.
    is_surplus: bool,
}

impl Policy {
    fn of(plan: &Plan, number: i64) -> Self {
        let deletes = |when: &str| plan.value["spec"]["persistentVolumeClaimRetentionPolicy"][when] == "Delete";
        let range = plan.start()..plan.start() + plan.replicas();
        Policy {
            when_deleted: deletes("whenDeleted"),
            when_scaled: deletes("whenScaled"),
            is_surplus: !range.contains(&number),
        }
    }

    /// The owners that a claim should have in place of those it has; None where they stay. `set` and `pod` are references
    /// to them as controllers.
    fn owners(&self, owners: &[Value], set: &Value, pod: &Value) -> Option<Vec<Value>> {
        let names =
            |owner: &Value, other: &Value| ["apiVersion", "kind", "name"].iter().all(|p| owner[*p] == other[*p]);
        let is = |owner: &Value, other: &Value| owner["uid"] == other["uid"];
        let ours = |owner: &Value| names(owner, set) || names(owner, pod);
        let has = |other: &Value| owners.iter().any(|owner| is(owner, other));
        // Of an earlier set or pod of that name: the garbage collector sees to it.
        if owners.iter().any(|o| [set, pod].iter().any(|us| names(o, us) && !is(o, us))) {
            return None;
        }
        let retains = !self.when_deleted && !self.when_scaled;
        let others: Vec<Value> = owners.iter().filter(|o| !ours(o)).cloned().collect();
        if !retains && others.iter().any(|o| o["controller"] == true) {
            // Nobody else's claim is taken over.
            return (has(set) || has(pod)).then_some(others);
        }
        let by_pod = self.when_scaled && self.is_surplus;
        let by_set = self.when_deleted && !by_pod;
        let controls = owners.iter().filter(|o| ours(o)).all(|o| o["controller"] == true);
        if controls && has(set) == by_set && has(pod) == by_pod {
            return None;
        }
        let wanted = [(by_set, set), (by_pod, pod)].into_iter().filter(|(wanted, _)| *wanted);
        Some(others.into_iter().chain(wanted.map(|(_, owner)| owner.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(kind: &str, name: &str, uid: &str) -> Value {
        let version = if kind == "Pod" { "v1" } else { "apps/v1" };
        json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true})
    }

    /// Claims stayed when their set had fewer pods, and those that were there before a change of the policy stayed as
    /// they were.
    #[test]
    fn owners_of_claims_follow_the_retention_policy() {
        let (set, pod) = (reference("StatefulSet", "s", "1"), reference("Pod", "s-0", "2"));
        let owners = |when_deleted, when_scaled, is_surplus, owners: &[&Value]| {
            let owners: Vec<Value> = owners.iter().copied().cloned().collect();
            Policy { when_deleted, when_scaled, is_surplus }.owners(&owners, &set, &pod)
        };
        assert_eq!(owners(false, false, false, &[]), None);
        assert_eq!(owners(false, false, true, &[&set]), Some(vec![]));
        assert_eq!(owners(true, false, true, &[]), Some(vec![set.clone()]));
        assert_eq!(owners(true, false, true, &[&set]), None);
        assert_eq!(owners(false, true, false, &[]), None);
        assert_eq!(owners(false, true, true, &[]), Some(vec![pod.clone()]));
        assert_eq!(owners(true, true, false, &[&pod]), Some(vec![set.clone()]));
        assert_eq!(owners(true, true, true, &[&set]), Some(vec![pod.clone()]));
    }

    #[test]
    fn claims_of_others_and_of_earlier_sets_are_left_alone() {
        let (set, pod) = (reference("StatefulSet", "s", "1"), reference("Pod", "s-0", "2"));
        let (earlier, other) = (reference("StatefulSet", "s", "0"), reference("Other", "o", "3"));
        let policy = Policy { when_deleted: true, when_scaled: true, is_surplus: false };
        assert_eq!(policy.owners(&[earlier], &set, &pod), None);
        assert_eq!(policy.owners(std::slice::from_ref(&other), &set, &pod), None);
        assert_eq!(policy.owners(&[other.clone(), set.clone()], &set, &pod), Some(vec![other]));
        let mut plain = set.clone();
        plain["controller"] = false.into();
        assert_eq!(policy.owners(&[plain], &set, &pod), Some(vec![set.clone()]));
    }

    #[test]
    fn a_claims_name_tells_the_sets_that_it_may_be_of() {
        assert!(may_be_of("web", "data-web-0") && may_be_of("web-0", "data-web-0-12"));
        assert!(!may_be_of("web", "web-0") && !may_be_of("web", "data-webs-0") && !may_be_of("web", "data-web-a"));
        assert!(!may_be_of("eb", "data-web-0") && !may_be_of("web", "data-web"));
    }
}
