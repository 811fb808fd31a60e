//! `kubelet_internal_checkpoint`: assignments on disk, in the kubelet's format, so that either agent takes up the other's.
//!
//! The checksum is FNV-1a 32 over the text in which Go's spew prints the data (`%#v`, keys sorted).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use proto::device_plugin::ContainerAllocateResponse;
use serde::{Deserialize, Serialize};

use super::{Assigned, State};

/// Name of the file in the folder of plugins' sockets.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Why assignments cannot be kept or read; the disk's or an editor's doing.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{FILE}: {0}")]
    File(std::io::Error),
    #[error("{FILE} is no checkpoint: {0}")]
    Syntax(serde_json::Error),
    #[error("{FILE} is corrupt: its checksum is {found}, of its data it is {computed}")]
    Checksum { found: u64, computed: u32 },
    #[error("{FILE} has an allocation that does not decode: {0}")]
    Allocation(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    data: Data,
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// Go writes null for none.
    pod_device_entries: Option<Vec<PodEntry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Serialize, Deserialize)]
struct PodEntry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container_name: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    /// NUMA node to ids; -1 for none.
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<i64, Vec<String>>,
    #[serde(rename = "AllocResp")]
    alloc_resp: Option<String>,
}

impl PodEntry {
    fn response(&self) -> Result<Vec<u8>, CheckpointError> {
        let text = self.alloc_resp.as_deref().unwrap_or_default();
        STANDARD.decode(text).map_err(|e| CheckpointError::Allocation(e.to_string()))
    }
}

/// What an earlier agent knew.
pub(super) struct Saved {
    pub pods: BTreeMap<String, BTreeMap<String, BTreeMap<String, Assigned>>>,
    pub resources: BTreeSet<String>,
}

/// Reads the file; `None` when there is none.
pub(super) fn read(dir: &Path) -> Result<Option<Saved>, CheckpointError> {
    let text = match std::fs::read(dir.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CheckpointError::File(error)),
    };
    let document: Document = serde_json::from_slice(&text).map_err(CheckpointError::Syntax)?;
    let computed = checksum(&document.data)?;
    if document.checksum != u64::from(computed) {
        return Err(CheckpointError::Checksum { found: document.checksum, computed });
    }
    let mut saved = Saved { pods: BTreeMap::new(), resources: BTreeSet::new() };
    for entry in document.data.pod_device_entries.into_iter().flatten() {
        let response = ContainerAllocateResponse::decode(entry.response()?.as_slice())
            .map_err(|e| CheckpointError::Allocation(e.to_string()))?;
        let by_node = entry.device_ids.into_iter().map(|(node, ids)| (node, ids.into_iter().collect())).collect();
        let containers = saved.pods.entry(entry.pod_uid).or_default();
        containers.entry(entry.container_name).or_default().insert(entry.resource_name, Assigned { by_node, response });
    }
    saved.resources = document.data.registered_devices.into_iter().flatten().map(|(name, _)| name).collect();
    Ok(Some(saved))
}

/// Writes the file anew: complete or not at all.
pub(super) fn write(dir: &Path, state: &State) -> Result<(), CheckpointError> {
    let data = data_of(state);
    let checksum = u64::from(checksum(&data)?);
    let text = serde_json::to_vec(&Document { data, checksum }).map_err(CheckpointError::Syntax)?;
    crate::state_file::write(&dir.join(FILE), &text).map_err(CheckpointError::File)
}

fn data_of(state: &State) -> Data {
    let mut entries = Vec::new();
    for (pod_uid, containers) in &state.pods {
        for (container_name, resources) in containers {
            for (resource_name, assigned) in resources {
                let ids = assigned.by_node.iter().map(|(node, ids)| (*node, ids.iter().cloned().collect()));
                entries.push(PodEntry {
                    pod_uid: pod_uid.clone(),
                    container_name: container_name.clone(),
                    resource_name: resource_name.clone(),
                    device_ids: ids.collect(),
                    alloc_resp: Some(STANDARD.encode(assigned.response.encode_to_vec())),
                });
            }
        }
    }
    let registered = state.resources.iter().map(|(name, r)| (name.clone(), Some(r.healthy().into_iter().collect())));
    Data {
        pod_device_entries: (!entries.is_empty()).then_some(entries),
        registered_devices: Some(registered.collect()),
    }
}

fn checksum(data: &Data) -> Result<u32, CheckpointError> {
    Ok(crate::pod::hash::fnv1a_32(spew(data)?.as_bytes()))
}

/// The data as spew prints it.
fn spew(data: &Data) -> Result<String, CheckpointError> {
    let mut out = String::from("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)");
    match &data.pod_device_entries {
        None => out.push_str("<nil>"),
        Some(entries) => {
            out.push('[');
            for (n, entry) in entries.iter().enumerate() {
                if n > 0 {
                    out.push(' ');
                }
                // Writing to a string cannot fail.
                let _ = write!(
                    out,
                    "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} DeviceIDs:(checkpoint.DevicesPerNUMA)map[",
                    entry.pod_uid, entry.container_name, entry.resource_name
                );
                let nodes = entry.device_ids.iter().map(|(node, ids)| format!("{node}:[{}]", ids.join(" ")));
                out.push_str(&nodes.collect::<Vec<_>>().join(" "));
                out.push_str("] AllocResp:([]uint8)");
                match &entry.alloc_resp {
                    None => out.push_str("<nil>"),
                    Some(_) => {
                        let bytes: Vec<String> = entry.response()?.iter().map(u8::to_string).collect();
                        let _ = write!(out, "[{}]", bytes.join(" "));
                    }
                }
                out.push('}');
            }
            out.push(']');
        }
    }
    out.push_str(" RegisteredDevices:(map[string][]string)");
    match &data.registered_devices {
        None => out.push_str("<nil>"),
        Some(resources) => {
            let each = resources.iter().map(|(name, ids)| match ids {
                None => format!("{name}:<nil>"),
                Some(ids) => format!("{name}:[{}]", ids.join(" ")),
            });
            let _ = write!(out, "map[{}]", each.collect::<Vec<_>>().join(" "));
        }
    }
    out.push('}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned() -> Assigned {
        let response =
            ContainerAllocateResponse { envs: [("A".to_owned(), "b".to_owned())].into(), ..Default::default() };
        Assigned { by_node: [(-1, ["w1".to_owned(), "w2".to_owned()].into())].into(), response }
    }

    #[test]
    fn what_is_written_is_read_again_and_damage_is_seen() {
        let dir = std::env::temp_dir().join(format!("devices-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(read(&dir).unwrap().is_none());
        let mut state = State::default();
        state.pods.entry("u".into()).or_default().entry("c".into()).or_default().insert("r/x".into(), assigned());
        state.resources.insert("r/x".into(), super::super::Resource::default());
        write(&dir, &state).unwrap();
        let saved = read(&dir).unwrap().unwrap();
        assert_eq!(saved.pods["u"]["c"]["r/x"], assigned());
        assert_eq!(saved.resources, ["r/x".to_owned()].into());
        let text = std::fs::read_to_string(dir.join(FILE)).unwrap();
        assert!(text.starts_with(r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r/x","DeviceIDs":{"-1":["w1","w2"]},"AllocResp":""#), "{text}");
        std::fs::write(dir.join(FILE), text.replace("w1", "w3")).unwrap();
        assert!(matches!(read(&dir), Err(CheckpointError::Checksum { .. })));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_checksum_is_over_the_text_of_spew() {
        let mut state = State::default();
        assert_eq!(
            spew(&data_of(&state)).unwrap(),
            "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> RegisteredDevices:(map[string][]string)map[]}"
        );
        state.pods.entry("u".into()).or_default().entry("c".into()).or_default().insert("r/x".into(), assigned());
        let text = spew(&data_of(&state)).unwrap();
        assert!(
            text.contains(
                "DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[w1 w2]] AllocResp:([]uint8)[10 6 10 1 65 18 1 98]}]"
            ),
            "{text}"
        );
    }
}
