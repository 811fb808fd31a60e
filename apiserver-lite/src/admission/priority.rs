//! Priority: gives pods the number that their priority class stands for, and keeps one class the default. Follows
//! `plugin/pkg/admission/priority`.

use std::sync::Arc;

use serde_json::Value;

use super::{Call, Operation};
use crate::status::Result;

const GROUP: &str = "scheduling.k8s.io";

pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !call.is("", "pods") || !new["spec"].is_object() {
        return Ok(());
    }
    match (call.operation, call.old) {
        (Operation::Create, _) => resolve(call, new),
        // A client that leaves them out means to keep them.
        (Operation::Update, Some(old)) => {
            for key in ["priority", "preemptionPolicy"] {
                if new["spec"][key].is_null() && !old["spec"][key].is_null() {
                    new["spec"][key] = old["spec"][key].clone();
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The class that pods without one get; of several, by accident, the lowest.
fn default_class(call: &Call<'_>) -> Option<Arc<Value>> {
    let snapshot = call.server.store.snapshot(&"priorityclasses.scheduling.k8s.io".into());
    let marked = snapshot.range(None, None).map(|o| o.kept()).filter(|c| c["globalDefault"] == true);
    marked.min_by_key(|c| c["value"].as_i64().unwrap_or(0))
}

fn resolve(call: &Call<'_>, pod: &mut Value) -> Result<()> {
    let name = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
    let class = if name.is_empty() {
        default_class(call)
    } else {
        let found = call.server.store.get(&"priorityclasses.scheduling.k8s.io".into(), "", &name);
        let Some(found) = found else {
            return Err(call.refuse(Some(pod), format!("no PriorityClass with name {name} was found")));
        };
        Some(found.kept())
    };
    let number = class.as_ref().and_then(|c| c["value"].as_i64()).unwrap_or(0);
    let policy = class.as_ref().and_then(|c| c["preemptionPolicy"].as_str()).unwrap_or("PreemptLowerPriority");
    if let Some(said) = pod["spec"]["priority"].as_i64().filter(|p| *p != number) {
        let why = format!(
            "the integer value of priority ({said}) must not be provided in pod spec; priority admission controller \
             computed {number} from the given PriorityClass name"
        );
        return Err(call.refuse(Some(pod), why));
    }
    if let Some(said) = pod["spec"]["preemptionPolicy"].as_str().filter(|p| *p != policy) {
        let why = format!(
            "the string value of PreemptionPolicy ({said}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        );
        return Err(call.refuse(Some(pod), why));
    }
    if let Some(class) = &class {
        pod["spec"]["priorityClassName"] = class["metadata"]["name"].clone();
    }
    pod["spec"]["priority"] = number.into();
    pod["spec"]["preemptionPolicy"] = policy.into();
    Ok(())
}

/// There is at most one default class.
pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.is(GROUP, "priorityclasses") || new["globalDefault"] != true {
        return Ok(());
    }
    let Some(class) = default_class(call) else { return Ok(()) };
    let marked = class["metadata"]["name"].as_str().unwrap_or_default();
    if call.operation == Operation::Update && new["metadata"]["name"] == marked {
        return Ok(());
    }
    let why = format!("PriorityClass {marked} is already marked as default. Only one default can exist");
    Err(call.refuse(Some(new), why))
}
