//! What belongs to gang scheduling: PodGroupProtection, PodGroupWorkloadExists and JobValidation.
//!
//! The kinds are served only where the feature gate GenericWorkload is on; without it none of these has anything to say.

use serde_json::{Value, json};

use super::{Call, Operation};
use crate::status::Result;
use crate::store::ObjectRef;

const GROUP: &str = "scheduling.k8s.io";
const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

/// PodGroupProtection: a group stays until its controller has seen that no pod is in it.
pub fn protect(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if call.operation != Operation::Create || !call.is(GROUP, "podgroups") {
        return Ok(());
    }
    let finalizers = &mut new["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(said) if said.iter().any(|name| name == FINALIZER) => {}
        Some(said) => said.push(FINALIZER.into()),
        None => *finalizers = json!([FINALIZER]),
    }
    Ok(())
}

/// PodGroupWorkloadExists: a group is made from a template that is there.
pub fn workload_exists(call: &Call<'_>, new: &Value) -> Result<()> {
    if call.operation != Operation::Create || !call.is(GROUP, "podgroups") {
        return Ok(());
    }
    let reference = &new["spec"]["podGroupTemplateRef"]["workload"];
    let part = |key: &str| reference[key].as_str().unwrap_or_default();
    if !reference.is_object() {
        return Ok(());
    }
    let found = call.server.store.get(&"workloads.scheduling.k8s.io".into(), call.namespace, part("workloadName"));
    match missing(
        found.as_ref().map(|found| found.value()).as_ref(),
        part("workloadName"),
        part("podGroupTemplateName"),
    ) {
        Some(why) => Err(call.refuse(Some(new), why)),
        None => Ok(()),
    }
}

/// What is wrong with a workload that a template should be in.
fn missing(workload: Option<&Value>, name: &str, template: &str) -> Option<String> {
    let quote = crate::status::quote;
    let Some(workload) = workload else {
        return Some(format!("PodGroup rejected: Workload {} not found", quote(name)));
    };
    if workload["metadata"]["deletionTimestamp"].is_string() {
        return Some(format!("PodGroup rejected: Workload {} is being deleted", quote(name)));
    }
    let mut templates = workload["spec"]["podGroupTemplates"].as_array().into_iter().flatten();
    let why =
        || format!("PodGroup rejected: PodGroupTemplate {} not found in Workload {}", quote(template), quote(name));
    (!templates.any(|t| t["name"] == template)).then(why)
}

/// JobValidation: how many pods a job has at a time does not change while they are scheduled as one.
pub fn same_parallelism(call: &Call<'_>, new: &Value) -> Result<()> {
    let Some(old) = call.old.filter(|_| call.operation == Operation::Update && call.is("batch", "jobs")) else {
        return Ok(());
    };
    if new["spec"]["parallelism"] == old["spec"]["parallelism"] {
        return Ok(());
    }
    let groups = "podgroups.scheduling.k8s.io".into();
    let is_gang = |group: &ObjectRef| group.value()["spec"]["schedulingPolicy"]["gang"].is_object();
    let found = match old["spec"]["template"]["spec"]["schedulingGroup"]["podGroupName"].as_str() {
        Some(name) => call.server.store.get(&groups, call.namespace, name).filter(is_gang),
        None => {
            let snapshot = call.server.store.snapshot(&groups);
            let found = snapshot.range(Some(call.namespace), None);
            let found = found.filter(|group| is_controlled(&group.value(), old)).find(|group| is_gang(group));
            found.cloned()
        }
    };
    let Some(group) = found else { return Ok(()) };
    let name = crate::status::quote(&group.key.name);
    let why = format!("cannot change parallelism for a Job referencing gang-scheduled PodGroup {name}");
    Err(call.refuse(Some(new), why))
}

fn is_controlled(group: &Value, job: &Value) -> bool {
    let mut owners = group["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| owner["controller"] == true && owner["uid"] == job["metadata"]["uid"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_made_from_a_template_that_is_there() {
        let workload = json!({"spec": {"podGroupTemplates": [{"name": "t"}]}});
        assert_eq!(missing(Some(&workload), "w", "t"), None);
        for (workload, template, why) in [
            (None, "t", "Workload \"w\" not found"),
            (Some(workload.clone()), "u", "PodGroupTemplate \"u\" not found in Workload \"w\""),
            (
                Some(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
                "t",
                "Workload \"w\" is being deleted",
            ),
        ] {
            let told = missing(workload.as_ref(), "w", template);
            assert_eq!(told, Some(format!("PodGroup rejected: {why}")));
        }
    }

    #[test]
    fn only_who_controls_a_group_is_its_job() {
        let job = json!({"metadata": {"uid": "u"}});
        let group = |uid: &str, controls: bool| json!({"metadata": {"ownerReferences": [{"uid": uid, "controller": controls}]}});
        assert!(is_controlled(&group("u", true), &job));
        assert!(!is_controlled(&group("v", true), &job) && !is_controlled(&group("u", false), &job));
        assert!(!is_controlled(&json!({}), &job));
    }
}
