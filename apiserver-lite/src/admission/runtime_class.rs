//! RuntimeClass: pods bring the overhead and the scheduling rules of the class they run in. Follows
//! `plugin/pkg/admission/runtimeclass`.

use serde_json::{Value, json};

use super::{Call, Operation, resources};
use crate::status::{Result, quote};

/// The class of a new pod, when it names one.
fn class_of(call: &Call<'_>, new: &Value) -> Result<Option<Value>> {
    let Some(name) = new["spec"]["runtimeClassName"].as_str() else { return Ok(None) };
    match call.server.store.get(&"runtimeclasses.node.k8s.io".into(), "", name) {
        Some(class) => Ok(Some(class.value())),
        None => Err(call.refuse(Some(new), format!("pod rejected: RuntimeClass {} not found", quote(name)))),
    }
}

fn concerns(call: &Call<'_>) -> bool {
    call.is("", "pods") && call.operation == Operation::Create
}

pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !concerns(call) {
        return Ok(());
    }
    let Some(class) = class_of(call, new)? else { return Ok(()) };
    let overhead = &class["overhead"]["podFixed"];
    if overhead.is_object() {
        let said = &new["spec"]["overhead"];
        if !said.is_null() && resources::parse(said) != resources::parse(overhead) {
            return Err(call.refuse(Some(new), MISMATCH));
        }
        new["spec"]["overhead"] = overhead.clone();
    }
    let scheduling = &class["scheduling"];
    for (key, wanted) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        let said = &new["spec"]["nodeSelector"][key];
        if !said.is_null() && said != wanted {
            let (wanted, said) = (wanted.as_str().unwrap_or_default(), said.as_str().unwrap_or_default());
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {said}"
            );
            return Err(call.refuse(Some(new), why));
        }
        new["spec"]["nodeSelector"][key] = wanted.clone();
    }
    for toleration in scheduling["tolerations"].as_array().into_iter().flatten() {
        match new["spec"].get_mut("tolerations").and_then(Value::as_array_mut) {
            Some(list) if list.contains(toleration) => {}
            Some(list) => list.push(toleration.clone()),
            None => new["spec"]["tolerations"] = json!([toleration]),
        }
    }
    Ok(())
}

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    if !concerns(call) {
        return Ok(());
    }
    let class = class_of(call, new)?;
    let defined = class.as_ref().map(|c| &c["overhead"]["podFixed"]).filter(|o| o.is_object());
    let said = &new["spec"]["overhead"];
    match defined {
        Some(defined) if resources::parse(defined) != resources::parse(said) => Err(call.refuse(Some(new), MISMATCH)),
        None if !said.is_null() => {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            Err(call.refuse(Some(new), why))
        }
        _ => Ok(()),
    }
}
