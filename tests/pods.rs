//! Pods of a test on a node of its own: made, waited for and asked.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::ApiServer;
use crate::node::{IMAGE, Node};

const PATIENCE: Duration = Duration::from_secs(60);

/// An API server and a node with everything that its pods need.
pub struct Pods {
    // The node goes first: its agent says goodbye to the server.
    pub node: Node,
    pub server: ApiServer,
}

impl Pods {
    /// `settings` are further lines of the agent's configuration.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start(name: &str, settings: &str) -> Result<Self> {
        let server = ApiServer::start(name, &[])?;
        let node = Node::start(&format!("{name}-node"), &server, settings)?;
        Ok(Pods { node, server })
    }

    /// A shell as a container `main`, with more members.
    pub fn shell(script: &str, more: &Value) -> Value {
        with(json!({"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}), more)
    }

    /// Makes a pod of a spec that needs no node, and a grace only where it is not a second.
    ///
    /// # Errors
    /// When the server refuses it.
    pub fn create(&self, name: &str, spec: &Value) -> Result<()> {
        let spec = with(json!({"nodeName": self.node.name, "terminationGracePeriodSeconds": 1}), spec);
        self.server.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))
    }

    /// The status once it is as wanted.
    ///
    /// # Errors
    /// When it never is; the text ends with the last status and the logs.
    pub fn wait(&self, name: &str, what: &str, done: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut status = Value::Null;
        let waited = self.node.wait_until(&format!("{name}: {what}"), PATIENCE, || {
            status = self.server.get("pod", name)?["status"].take();
            Ok(done(&status))
        });
        waited.with_context(|| format!("{status:#}"))?;
        Ok(status)
    }

    /// The status in a phase.
    ///
    /// # Errors
    /// As [`Pods::wait`].
    pub fn wait_phase(&self, name: &str, phase: &str) -> Result<Value> {
        self.wait(name, phase, |status| status["phase"] == phase)
    }

    /// What a shell in a pod of its own says, which has to end well. `container` and `spec` are further members of its
    /// container and pod.
    ///
    /// # Errors
    /// When it fails, or does not end.
    pub fn said(&self, name: &str, script: &str, container: &Value, spec: &Value) -> Result<String> {
        let own = json!({"restartPolicy": "Never", "containers": [Pods::shell(script, container)]});
        self.create(name, &with(own, spec))?;
        self.wait_phase(name, "Succeeded")?;
        self.server.kubectl(&["logs", name])
    }

    /// Messages of the events about a pod that have a reason.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn events(&self, pod: &str, reason: &str) -> Result<Vec<String>> {
        let list: Value = serde_json::from_str(&self.server.kubectl(&["get", "events", "-o", "json"])?)?;
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let wanted = all.iter().filter(|e| e["involvedObject"]["name"] == pod && e["reason"] == reason);
        Ok(wanted.map(|e| e["message"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// The same once there are some: events come when the status has been told, or a little later.
    ///
    /// # Errors
    /// When none comes.
    pub fn told(&self, pod: &str, reason: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        self.node.wait_until(&format!("{pod} has an event {reason}"), Duration::from_secs(20), || {
            found = self.events(pod, reason)?;
            Ok(!found.is_empty())
        })?;
        Ok(found)
    }

    /// Waits for an event whose message holds these words.
    ///
    /// # Errors
    /// When none comes; the text names those that did.
    pub fn told_of(&self, pod: &str, reason: &str, words: &str) -> Result<()> {
        let mut found = Vec::new();
        let waited = self.node.wait_until(&format!("{pod} is told {reason}: {words}"), Duration::from_secs(30), || {
            found = self.events(pod, reason)?;
            Ok(found.iter().any(|message| message.contains(words)))
        });
        waited.with_context(|| format!("{found:#?}"))
    }
}

/// The object with the members of another beside or instead of its own.
fn with(mut object: Value, more: &Value) -> Value {
    if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
        object.extend(more.clone());
    }
    object
}

/// The state of a container by its name, of whichever list it is in.
pub fn container<'a>(status: &'a Value, name: &str) -> &'a Value {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let all = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
    all.into_iter().find(|c| c["name"] == name).unwrap_or(&Value::Null)
}

/// The condition of a type.
pub fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let all = status["conditions"].as_array().into_iter().flatten();
    all.into_iter().find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}
