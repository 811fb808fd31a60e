//! Between typed messages and JSON trees, by way of protobuf and the schema table.

use prost::Message;
use proto::schema::TypeSet;
use serde_json::Value;

/// A tree as the message that `name` (full protobuf name) declares; None when it does not fit.
pub fn parse<M: Message + Default>(name: &str, tree: &Value) -> Option<M> {
    let set = TypeSet::built_in();
    let id = set.struct_named(name)?;
    let decoded = proto::json::conform(set, id, tree).ok()?;
    let mut raw = Vec::new();
    proto::protobuf::encode(set, id, &decoded.value, &mut raw);
    M::decode(raw.as_slice()).ok()
}

/// A message as a tree; null when the schema does not know it.
pub fn of<M: Message>(name: &str, message: &M) -> Value {
    let set = TypeSet::built_in();
    let Some(id) = set.struct_named(name) else { return Value::Null };
    proto::protobuf::decode(set, id, &message.encode_to_vec()).unwrap_or(Value::Null)
}
