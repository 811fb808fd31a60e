//! The environment of a container: `envFrom`, `env`, service variables.
//!
//! Order decides: `envFrom` first, then `env` entry by entry, each seeing all before it and the services; service
//! variables fill in what nobody set. Each name comes out once.
//!
//! Followed: kubelet `makeEnvironmentVariables`.

pub mod fields;
mod file;
mod services;

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::api::core::v1::{Container, EnvVarSource, Node, Pod, Service};

use crate::objects::{ObjectError, Objects};
use crate::pod::expand::expand;
use crate::pod::spec::PodExt;
use crate::volumes::PodVolumes;

pub(crate) use fields::go_quote;
use fields::{Left, container_resource, field_value};

/// What the environment takes from outside the spec.
pub struct EnvContext<'a> {
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node_name: &'a str,
    /// For limits that are not set: what the node could give.
    pub node: &'a Node,
    pub services: &'a [Arc<Service>],
    /// Where the pod's volumes lie, for variables from files.
    pub volumes: &'a PodVolumes,
}

/// Why a variable has no value; the text is the waiting message.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EnvError {
    #[error("{0}")]
    Object(#[from] ObjectError),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key { kind: &'static str, namespace: String, name: String, key: String },
    #[error("{0}")]
    Field(String),
}

/// All variables, each name once, in the order of their first appearance. Values are bytes, as those of secrets are.
pub async fn container_env(
    pod: &Pod,
    container: &Container,
    context: &EnvContext<'_>,
    objects: &dyn Objects,
) -> Result<Vec<(String, Vec<u8>)>, EnvError> {
    let mut out = Variables::default();
    let services = services::variables(pod, context.services).into_iter();
    let services: Vec<_> = services.map(|(name, value)| (name, value.into_bytes())).collect();
    for source in &container.env_from {
        for (name, value) in all_of(pod, source, objects).await? {
            out.set(format!("{}{name}", source.prefix), value);
        }
    }
    for variable in &container.env {
        let value = match &variable.value_from {
            None => {
                // What is set already hides a service variable of the same name.
                let seen: Vec<(String, Vec<u8>)> = services.iter().cloned().chain(out.list.iter().cloned()).collect();
                Some(expand(&variable.value, &seen))
            }
            Some(from) => value_from(pod, container, from, context, objects).await?,
        };
        if let Some(value) = value {
            out.set(variable.name.clone(), value);
        }
    }
    for (name, value) in services {
        out.set_if_absent(name, value);
    }
    Ok(out.list)
}

#[derive(Default)]
struct Variables {
    list: Vec<(String, Vec<u8>)>,
}

impl Variables {
    fn set(&mut self, name: String, value: Vec<u8>) {
        match self.list.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.list.push((name, value)),
        }
    }

    fn set_if_absent(&mut self, name: String, value: Vec<u8>) {
        if !self.list.iter().any(|(n, _)| *n == name) {
            self.list.push((name, value));
        }
    }
}

async fn all_of(
    pod: &Pod,
    source: &proto::api::core::v1::EnvFromSource,
    objects: &dyn Objects,
) -> Result<BTreeMap<String, Vec<u8>>, EnvError> {
    let namespace = pod.namespace();
    if let Some(reference) = &source.config_map_ref {
        let name = reference.local_object_reference.as_ref().map_or("", |r| &r.name);
        return match objects.config_map(namespace, name).await {
            Ok(found) => Ok(found.data.iter().map(|(k, v)| (k.clone(), v.clone().into_bytes())).collect()),
            Err(e) if e.is_not_found() && reference.optional == Some(true) => Ok(BTreeMap::new()),
            Err(e) => Err(e.into()),
        };
    }
    if let Some(reference) = &source.secret_ref {
        let name = reference.local_object_reference.as_ref().map_or("", |r| &r.name);
        return match objects.secret(namespace, name).await {
            Ok(found) => Ok(found.data.iter().map(|(k, v)| (k.clone(), v.to_vec())).collect()),
            Err(e) if e.is_not_found() && reference.optional == Some(true) => Ok(BTreeMap::new()),
            Err(e) => Err(e.into()),
        };
    }
    Ok(BTreeMap::new())
}

fn of_file(reference: &proto::api::core::v1::FileKeySelector, volumes: &PodVolumes) -> Result<Option<String>, String> {
    let Some(volume) = volumes.get(&reference.volume_name) else {
        return Err(format!("cannot find the volume {:?} referenced by FileKeyRef", reference.volume_name));
    };
    match file::value(&volume.host_path, &reference.path, &reference.key)? {
        Some(value) => Ok(Some(value)),
        None if reference.optional == Some(true) => Ok(None),
        None => {
            // The kubelet names the file as the node has it.
            let path = volume.host_path.join(reference.path.trim_start_matches('/')).display().to_string();
            Err(format!("environment variable key {} not found in file {}", go_quote(&reference.key), go_quote(&path)))
        }
    }
}

/// `None` for an optional value that is not there.
async fn value_from(
    pod: &Pod,
    container: &Container,
    from: &EnvVarSource,
    context: &EnvContext<'_>,
    objects: &dyn Objects,
) -> Result<Option<Vec<u8>>, EnvError> {
    let text = |found: Result<String, String>| found.map(|text| Some(text.into_bytes())).map_err(EnvError::Field);
    let namespace = pod.namespace();
    if let Some(field) = &from.field_ref {
        return text(field_value(pod, &field.field_path, context));
    }
    if let Some(resource) = &from.resource_field_ref {
        let left = Left::to(pod, context.node);
        return text(container_resource(pod, resource, &container.name, left));
    }
    if let Some(file) = &from.file_key_ref {
        let value = of_file(file, context.volumes).map_err(EnvError::Field)?;
        return Ok(value.map(String::into_bytes));
    }
    let (kind, name, key, optional, found) = if let Some(r) = &from.config_map_key_ref {
        let name = r.local_object_reference.as_ref().map_or("", |r| r.name.as_str());
        let found =
            objects.config_map(namespace, name).await.map(|m| m.data.get(&r.key).map(|v| v.clone().into_bytes()));
        ("ConfigMap", name, &r.key, r.optional, found)
    } else if let Some(r) = &from.secret_key_ref {
        let name = r.local_object_reference.as_ref().map_or("", |r| r.name.as_str());
        let found = objects.secret(namespace, name).await.map(|s| s.data.get(&r.key).map(|v| v.to_vec()));
        ("Secret", name, &r.key, r.optional, found)
    } else {
        return Err(EnvError::Field("the source of the variable is not supported".into()));
    };
    let optional = optional == Some(true);
    match found {
        Ok(Some(value)) => Ok(Some(value)),
        Ok(None) if optional => Ok(None),
        Err(e) if e.is_not_found() && optional => Ok(None),
        Ok(None) => {
            let (namespace, name, key) = (namespace.to_owned(), name.to_owned(), key.clone());
            Err(EnvError::Key { kind, namespace, name, key })
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use proto::api::core::v1::{
        ConfigMap, EnvFromSource, EnvVar, FileKeySelector, LocalObjectReference, Secret, SecretEnvSource,
        SecretKeySelector,
    };

    use super::*;
    use crate::objects::Answer;
    use crate::volumes::MountSource;

    /// Has one secret for all who ask.
    struct OneSecret(Arc<Secret>);

    impl Objects for OneSecret {
        fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
            Box::pin(std::future::pending())
        }
        fn secret<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
            Box::pin(std::future::ready(Ok(self.0.clone())))
        }
        fn services<'a>(&'a self, _: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
            Box::pin(std::future::pending())
        }
        fn register(&self, _: &Pod) {}
        fn unregister(&self, _: &str) {}
    }

    /// What is no text came to containers as replacement characters.
    #[tokio::test]
    async fn values_of_secrets_are_given_byte_for_byte() {
        let bytes = vec![b'a', 0xff, 0xfe];
        let secret = Secret { data: [("k".to_owned(), bytes.clone().into())].into(), ..Default::default() };
        let reference = || Some(LocalObjectReference { name: "s".into() });
        let key = SecretKeySelector { local_object_reference: reference(), key: "k".into(), ..Default::default() };
        let from = EnvVarSource { secret_key_ref: Some(key), ..Default::default() };
        let all = SecretEnvSource { local_object_reference: reference(), ..Default::default() };
        let container = Container {
            env_from: vec![EnvFromSource { prefix: "P_".into(), secret_ref: Some(all), ..Default::default() }],
            env: vec![
                EnvVar { name: "A".into(), value_from: Some(from), ..Default::default() },
                EnvVar { name: "B".into(), value: "x$(A)y$(P_k)".into(), ..Default::default() },
            ],
            ..Default::default()
        };
        let (node, volumes) = (Node::default(), PodVolumes::default());
        let context =
            EnvContext { pod_ips: &[], host_ips: &[], node_name: "n", node: &node, services: &[], volumes: &volumes };
        let objects = OneSecret(Arc::new(secret));
        let found = container_env(&Pod::default(), &container, &context, &objects).await.unwrap();
        let both = [b"x".as_slice(), &bytes, b"y", &bytes].concat();
        assert_eq!(found, [("P_k".into(), bytes.clone()), ("A".into(), bytes), ("B".to_owned(), both)]);
        // Files written for the first of all servers name the node so.
        let host = fields::field_value(&Pod::default(), "spec.host", &context);
        assert_eq!(host, Ok("n".into()));
    }

    #[test]
    fn a_key_that_a_file_does_not_have_is_told_with_the_files_place_on_the_node() {
        let root = std::env::temp_dir().join(format!("env-of-file-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("vars"), "A='b'").unwrap();
        let volumes =
            PodVolumes::from([("v".to_owned(), MountSource { host_path: root.clone(), ..Default::default() })]);
        let of = |volume: &str, key: &str, optional| {
            let reference = FileKeySelector {
                volume_name: volume.into(),
                path: "vars".into(),
                key: key.into(),
                optional: Some(optional),
            };
            of_file(&reference, &volumes)
        };
        let file = root.join("vars");
        let missing = format!("environment variable key \"Z\" not found in file \"{}\"", file.display());
        assert_eq!(of("v", "A", false), Ok(Some("b".into())));
        assert_eq!((of("v", "Z", false), of("v", "Z", true)), (Err(missing), Ok(None)));
        let unknown = "cannot find the volume \"w\" referenced by FileKeyRef".to_owned();
        assert_eq!(of("w", "A", true), Err(unknown));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
