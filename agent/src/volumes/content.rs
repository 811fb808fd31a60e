//! The files of `configMap`, `secret`, `downwardAPI` and `projected` volumes.

use std::time::Duration;

use proto::api::core::v1::{DownwardApiVolumeFile, KeyToPath, Pod, VolumeSource};

use crate::env::fields::{container_resource, metadata_value};
use crate::objects::{ObjectError, TokenQuery};
use crate::pod::spec::PodExt;

use super::VolumeDeps;
use super::files::{Payload, Payloads};

const DEFAULT_MODE: i32 = 0o644;
/// The API's default for projected tokens.
const TOKEN_SECONDS: i64 = 3600;

/// The plugin's name in paths, and whether the content lies in memory.
pub fn plugin(source: &VolumeSource) -> Option<(&'static str, bool)> {
    if source.config_map.is_some() {
        Some(("configmap", false))
    } else if source.secret.is_some() {
        Some(("secret", true))
    } else if source.downward_api.is_some() {
        Some(("downward-api", true))
    } else if source.projected.is_some() {
        Some(("projected", true))
    } else {
        None
    }
}

/// All files of a volume.
pub async fn collect(
    deps: &VolumeDeps,
    pod: &Pod,
    source: &VolumeSource,
    group: Option<u32>,
) -> Result<Payloads, String> {
    let mut out = Payloads::new();
    let context = Context { deps, pod, group };
    if let Some(map) = &source.config_map {
        let name = map.local_object_reference.as_ref().map_or("", |r| &r.name);
        let mode = mode_of(map.default_mode);
        context.config_map(name, &map.items, map.optional, mode, &mut out).await?;
    } else if let Some(secret) = &source.secret {
        let mode = mode_of(secret.default_mode);
        context.secret(&secret.secret_name, &secret.items, secret.optional, mode, &mut out).await?;
    } else if let Some(downward) = &source.downward_api {
        context.downward(&downward.items, mode_of(downward.default_mode), &mut out)?;
    } else if let Some(projected) = &source.projected {
        let mode = mode_of(projected.default_mode);
        for part in &projected.sources {
            if let Some(map) = &part.config_map {
                let name = map.local_object_reference.as_ref().map_or("", |r| &r.name);
                context.config_map(name, &map.items, map.optional, mode, &mut out).await?;
            } else if let Some(secret) = &part.secret {
                let name = secret.local_object_reference.as_ref().map_or("", |r| &r.name);
                context.secret(name, &secret.items, secret.optional, mode, &mut out).await?;
            } else if let Some(downward) = &part.downward_api {
                context.downward(&downward.items, mode, &mut out)?;
            } else if let Some(token) = &part.service_account_token {
                let seconds = token.expiration_seconds.unwrap_or(TOKEN_SECONDS);
                let data = context.token(&token.audience, seconds).await?;
                let (mode, uid) = context.token_owner(mode);
                out.insert(token.path.clone(), Payload { data, mode, uid });
            } else {
                return Err("a source of the projected volume is not supported".into());
            }
        }
    }
    Ok(out)
}

fn mode_of(mode: Option<i32>) -> u32 {
    u32::try_from(mode.unwrap_or(DEFAULT_MODE)).unwrap_or(0o644) & 0o777
}

struct Context<'a> {
    deps: &'a VolumeDeps,
    pod: &'a Pod,
    group: Option<u32>,
}

impl Context<'_> {
    async fn config_map(
        &self,
        name: &str,
        items: &[KeyToPath],
        optional: Option<bool>,
        mode: u32,
        out: &mut Payloads,
    ) -> Result<(), String> {
        let found = self.deps.objects.config_map(self.pod.namespace(), name).await;
        let Some(map) = present(found, optional)? else { return Ok(()) };
        let mut all: Vec<(&String, Vec<u8>)> = map.data.iter().map(|(k, v)| (k, v.clone().into_bytes())).collect();
        all.extend(map.binary_data.iter().map(|(k, v)| (k, v.to_vec())));
        pick("configmap", all, items, optional, mode, out)
    }

    async fn secret(
        &self,
        name: &str,
        items: &[KeyToPath],
        optional: Option<bool>,
        mode: u32,
        out: &mut Payloads,
    ) -> Result<(), String> {
        let found = self.deps.objects.secret(self.pod.namespace(), name).await;
        let Some(secret) = present(found, optional)? else { return Ok(()) };
        let all = secret.data.iter().map(|(k, v)| (k, v.to_vec())).collect();
        pick("secret", all, items, optional, mode, out)
    }

    fn downward(&self, items: &[DownwardApiVolumeFile], mode: u32, out: &mut Payloads) -> Result<(), String> {
        for item in items {
            let text = if let Some(field) = &item.field_ref {
                metadata_value(self.pod, &field.field_path)?
            } else if let Some(resource) = &item.resource_field_ref {
                container_resource(self.pod, resource, "", &self.deps.node.borrow())?
            } else {
                continue;
            };
            let mode = item.mode.map_or(mode, |m| mode_of(Some(m)));
            out.insert(item.path.clone(), Payload { data: text.into_bytes(), mode, uid: None });
        }
        Ok(())
    }

    async fn token(&self, audience: &str, seconds: i64) -> Result<Vec<u8>, String> {
        let query = TokenQuery {
            namespace: self.pod.namespace().to_owned(),
            service_account: self.pod.spec().service_account_name.clone(),
            audience: audience.to_owned(),
            expiration: Duration::from_secs(seconds.max(0).unsigned_abs()),
            pod_name: self.pod.name().to_owned(),
            pod_uid: self.pod.uid().to_owned(),
        };
        let token = self.deps.tokens.token(&query).await;
        token.map(String::into_bytes).map_err(|e| format!("failed to fetch token: {e}"))
    }

    /// A token is readable by the one user that the whole pod runs as; a pod with a group shares it with the group.
    fn token_owner(&self, mode: u32) -> (u32, Option<u32>) {
        if self.group.is_some() {
            return (0o600, None);
        }
        let spec = self.pod.spec();
        let of_pod = spec.security_context.as_ref().and_then(|s| s.run_as_user);
        let users: Option<Vec<i64>> = spec
            .containers
            .iter()
            .chain(&spec.init_containers)
            .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod))
            .collect();
        match users.as_deref() {
            Some([first, rest @ ..]) if rest.iter().all(|u| u == first) => (0o600, u32::try_from(*first).ok()),
            _ => (mode, None),
        }
    }
}

fn present<T>(found: Result<T, ObjectError>, optional: Option<bool>) -> Result<Option<T>, String> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.is_not_found() && optional == Some(true) => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

/// All keys under their own names, or the items asked for under theirs.
fn pick(
    kind: &str,
    all: Vec<(&String, Vec<u8>)>,
    items: &[KeyToPath],
    optional: Option<bool>,
    mode: u32,
    out: &mut Payloads,
) -> Result<(), String> {
    if items.is_empty() {
        out.extend(all.into_iter().map(|(key, data)| (key.clone(), Payload { data, mode, uid: None })));
        return Ok(());
    }
    for item in items {
        match all.iter().find(|(key, _)| **key == item.key) {
            Some((_, data)) => {
                let mode = item.mode.map_or(mode, |m| mode_of(Some(m)));
                out.insert(item.path.clone(), Payload { data: data.clone(), mode, uid: None });
            }
            None if optional == Some(true) => {}
            None => return Err(format!("{kind} references non-existent config key: {}", item.key)),
        }
    }
    Ok(())
}
