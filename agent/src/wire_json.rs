//! Prost values as Kubernetes JSON, by the schema table.

use prost::Message;
use proto::schema::TypeSet;
use serde_json::Value;

/// The JSON tree of a message; `name` is its full protobuf name. A name that the table lacks gives null.
pub fn to_value(name: &str, message: &impl Message) -> Value {
    let set = TypeSet::built_in();
    let decoded = set.struct_named(name).map(|id| proto::protobuf::decode(set, id, &message.encode_to_vec()));
    match decoded {
        Some(Ok(value)) => value,
        _ => Value::Null,
    }
}

/// The JSON text of a message, fields in Go's order.
pub fn to_json(name: &str, message: &impl Message) -> String {
    let set = TypeSet::built_in();
    let Some(id) = set.struct_named(name) else { return "null".into() };
    let mut out = Vec::new();
    proto::json::write(set, id, &to_value(name, message), &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// A message from a JSON tree in the form of [`to_value`].
///
/// # Errors
/// When the tree does not fit the type.
pub fn from_value<M: Message + Default>(name: &str, value: &Value) -> Result<M, WireError> {
    let set = TypeSet::built_in();
    let id = set.struct_named(name).ok_or(WireError::UnknownType)?;
    let decoded = proto::json::conform(set, id, value).map_err(|e| WireError::Json(e.to_string()))?;
    let mut bytes = Vec::new();
    proto::protobuf::encode(set, id, &decoded.value, &mut bytes);
    M::decode(bytes.as_slice()).map_err(WireError::Protobuf)
}

/// A value that is not of the wanted type; the sender's fault, no retry.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("no such type")]
    UnknownType,
    #[error("{0}")]
    Json(String),
    #[error("protobuf: {0}")]
    Protobuf(prost::DecodeError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{ContainerPort, ExecAction, LifecycleHandler};

    #[test]
    fn annotations_are_written_as_go_writes_them() {
        let hook = LifecycleHandler {
            exec: Some(ExecAction { command: vec!["sh".into(), "-c".into(), "echo".into()] }),
            ..Default::default()
        };
        let text = to_json("k8s.io.api.core.v1.LifecycleHandler", &hook);
        assert_eq!(text, r#"{"exec":{"command":["sh","-c","echo"]}}"#);
        let port = ContainerPort {
            host_port: 18081,
            container_port: 9,
            protocol: "TCP".into(),
            host_ip: "127.0.0.1".into(),
            ..Default::default()
        };
        let text = to_json("k8s.io.api.core.v1.ContainerPort", &port);
        assert_eq!(text, r#"{"hostPort":18081,"containerPort":9,"protocol":"TCP","hostIP":"127.0.0.1"}"#);
    }
}
