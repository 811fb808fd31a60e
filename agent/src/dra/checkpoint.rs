//! `dra_manager_state`: which claims are prepared for which pods, in the kubelet's form, so that either agent takes up the
//! other's. The checksum is the CRC-32 (IEEE) of the data's text.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub const FILE: &str = "dra_manager_state";
const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// Why the file cannot be used; the disk's or an editor's doing.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{0}")]
    File(io::Error),
    #[error("it is no checkpoint: {0}")]
    Syntax(serde_json::Error),
    #[error("its checksum is {found}, of its data it is {computed}")]
    Checksum { found: u32, computed: u32 },
    #[error("it is of kind {0}")]
    Kind(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    /// Go writes null for none.
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<Claim>>,
}

/// A claim that pods of this node use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    #[serde(rename = "ClaimUID")]
    pub uid: String,
    #[serde(rename = "ClaimName")]
    pub name: String,
    #[serde(rename = "Namespace")]
    pub namespace: String,
    /// Go's set of the uids of the pods that use it.
    #[serde(rename = "PodUIDs", with = "set")]
    pub pods: std::collections::BTreeSet<String>,
    /// By driver; one that has given no devices is in it too.
    #[serde(rename = "DriverState")]
    pub drivers: BTreeMap<String, Driver>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Driver {
    pub devices: Option<Vec<Device>>,
}

impl Driver {
    pub fn devices(&self) -> &[Device] {
        self.devices.as_deref().unwrap_or_default()
    }
}

/// A device as the driver described it when it prepared the claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Device {
    pub pool_name: String,
    pub device_name: String,
    #[serde(rename = "ShareID", default)]
    pub share_id: Option<String>,
    /// None means all requests of the claim.
    pub request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    pub cdi_devices: Option<Vec<String>>,
}

/// A set as Go writes it: a map to empty objects.
mod set {
    use std::collections::{BTreeMap, BTreeSet};

    use serde::{Deserialize as _, Deserializer, Serializer};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nothing {}

    pub fn serialize<S: Serializer>(set: &BTreeSet<String>, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map(set.iter().map(|key| (key, Nothing {})))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
        let map = Option::<BTreeMap<String, Nothing>>::deserialize(from)?;
        Ok(map.into_iter().flatten().map(|(key, _)| key).collect())
    }
}

/// Reads the file; nothing when there is none.
///
/// # Errors
/// See [`CheckpointError`]; none of it can be believed then.
pub fn read(root: &Path) -> Result<Vec<Claim>, CheckpointError> {
    match std::fs::read(root.join(FILE)) {
        Ok(text) => decode(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(CheckpointError::File(error)),
    }
}

fn decode(text: &[u8]) -> Result<Vec<Claim>, CheckpointError> {
    let document: Document = serde_json::from_slice(text).map_err(CheckpointError::Syntax)?;
    let computed = crc32(document.data.as_bytes());
    if document.checksum != computed {
        return Err(CheckpointError::Checksum { found: document.checksum, computed });
    }
    let data: Data = serde_json::from_str(&document.data).map_err(CheckpointError::Syntax)?;
    if (data.kind.as_str(), data.api_version.as_str()) != (KIND, API_VERSION) {
        return Err(CheckpointError::Kind(format!("{} {}", data.api_version, data.kind)));
    }
    Ok(data.claims.unwrap_or_default())
}

/// The text of the file.
///
/// # Errors
/// Never in practice: every key is text.
pub fn encode(claims: Vec<Claim>) -> Result<Vec<u8>, serde_json::Error> {
    let data = Data { kind: KIND.into(), api_version: API_VERSION.into(), claims: Some(claims) };
    let data = serde_json::to_string(&data)?;
    let checksum = crc32(data.as_bytes());
    serde_json::to_vec(&Document { data, checksum })
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kubelet writes it, with its checksum.
    const KUBELETS: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":1656016162}"#;

    #[test]
    fn a_file_of_the_kubelet_is_read_and_written_again() {
        let claims = decode(KUBELETS.as_bytes()).unwrap();
        assert_eq!((claims[0].name.as_str(), claims[0].pods.len()), ("example", 1));
        let device = &claims[0].drivers["test-driver.cdi.k8s.io"].devices()[0];
        assert_eq!(device.cdi_devices.as_deref(), Some(&["example.com/example=cdi-example".to_owned()][..]));
        let text = encode(claims.clone()).unwrap();
        assert_eq!(decode(&text).unwrap(), claims);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(r#"\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}}"#), "{text}");
        assert!(text.contains(r#"\"ShareID\":null,\"RequestNames\":[\"test request\"]"#), "{text}");
    }

    #[test]
    fn damage_is_seen() {
        let damaged = KUBELETS.replace("dev-1", "dev-2");
        assert!(matches!(decode(damaged.as_bytes()), Err(CheckpointError::Checksum { found: 1_656_016_162, .. })));
        assert!(matches!(decode(b"{"), Err(CheckpointError::Syntax(_))));
        let data = r#"{"kind":"Other","apiVersion":"v1","ClaimInfoStateList":null}"#;
        let text = serde_json::json!({"Data": data, "Checksum": crc32(data.as_bytes())}).to_string();
        assert!(matches!(decode(text.as_bytes()), Err(CheckpointError::Kind(_))));
    }
}
