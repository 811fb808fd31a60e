//! Whole objects as upstream shows them in complaints: in its own types, which have no names in JSON.
//!
//! Read from the schema of the published types, which differ from upstream's own in few places: those are listed here.
//! Every member is shown, set or not, by the name it has in Go; types of `meta/v1` have their JSON names there, too.
//! Used where one value is too large for a [`crate::go_value::Shape`] of its own.

use proto::schema::{Prop, Struct, StructId, Type, TypeId, TypeSet};
use serde_json::{Map, Value};

use crate::field_error::{Raw, escaped};

const META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.";
const TEMPLATE: &str = "k8s.io.api.core.v1.PodTemplateSpec";
const POD: &str = "k8s.io.api.core.v1.PodSpec";
const POD_SECURITY: &str = "k8s.io.api.core.v1.PodSecurityContext";

/// Members of a pod's spec that upstream keeps in its security context, which is always there.
const IN_SECURITY_CONTEXT: [&str; 5] = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"];
/// An older name of `serviceAccountName`.
const NOT_KEPT: &str = "serviceAccount";

/// Names that begin with letters that are one word in Go.
const WORDS: [(&str, &str); 22] = [
    ("api", "API"),
    ("aws", "AWS"),
    ("csi", "CSI"),
    ("dns", "DNS"),
    ("fc", "FC"),
    ("fs", "FS"),
    ("gce", "GCE"),
    ("gmsa", "GMSA"),
    ("grpc", "GRPC"),
    ("http", "HTTP"),
    ("io", "IO"),
    ("ip", "IP"),
    ("iscsi", "ISCSI"),
    ("nfs", "NFS"),
    ("os", "OS"),
    ("pd", "PD"),
    ("rbd", "RBD"),
    ("se", "SE"),
    ("tcp", "TCP"),
    ("tty", "TTY"),
    ("uid", "UID"),
    ("wwids", "WWIDs"),
];

/// A value of a published type in the words of upstream's own.
pub fn shown(type_name: &str, value: &Value) -> Raw {
    let set = TypeSet::built_in();
    let mut out = Vec::new();
    match set.struct_named(type_name) {
        Some(id) => write_struct(set, id, value, &mut out),
        None => proto::json::write_sorted(value, &mut out),
    }
    Raw(escaped(String::from_utf8(out).unwrap_or_default()))
}

/// What Go calls a member: its first word large.
fn go_name(name: &str) -> String {
    let end = name.find(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit()).unwrap_or(name.len());
    let (first, rest) = name.split_at(end);
    match (name, WORDS.iter().find(|(word, _)| *word == first)) {
        ("cephfs", _) => "CephFS".into(),
        ("securityContext" | "serviceAccountName", _) | (_, None) => {
            let mut letters = name.chars();
            letters.next().map_or(String::new(), |first| first.to_ascii_uppercase().to_string() + letters.as_str())
        }
        (_, Some((_, word))) => format!("{word}{rest}"),
    }
}

struct Members<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl Members<'_> {
    fn name(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        proto::json::write_string(name, self.out);
        self.out.push(b':');
        self.out
    }
}

fn write_struct(set: &TypeSet, id: StructId, value: &Value, out: &mut Vec<u8>) {
    let shape = set.get(id);
    if shape.name.starts_with(META) {
        return proto::json::write(set, id, value, out);
    }
    out.push(b'{');
    let mut members = Members { out, first: true };
    for prop in shape.props.iter().skip(if shape.typed { 2 } else { 0 }) {
        let member = &value[&*prop.name];
        match (&*shape.name, &*prop.name) {
            // It is no member but part of the whole.
            (TEMPLATE, "metadata") => inlined(set, prop, member, &mut members),
            (POD, name) if IN_SECURITY_CONTEXT.contains(&name) || name == NOT_KEPT => {}
            (POD, "securityContext") => {
                let mut whole = member.as_object().cloned().unwrap_or_default();
                let moved = IN_SECURITY_CONTEXT.into_iter().filter_map(|name| Some((name, value.get(name)?)));
                moved.for_each(|(name, value)| drop(whole.insert(name.into(), value.clone())));
                pod_security(set, &Value::Object(whole), members.name("SecurityContext"));
            }
            (_, name) => {
                let out = members.name(&go_name(name));
                write_member(set, prop, member, out);
            }
        }
    }
    out.push(b'}');
}

/// Writes the members of an object of `meta/v1` among others.
fn inlined(set: &TypeSet, prop: &Prop, value: &Value, members: &mut Members<'_>) {
    let (Type::Struct(id) | Type::AtomicStruct(id)) = set.ty(prop.ty) else { return };
    let mut whole = Vec::new();
    proto::json::write(set, *id, value, &mut whole);
    let inside = whole.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}")).unwrap_or_default();
    if !inside.is_empty() {
        members.first = false;
        members.out.extend_from_slice(inside);
    }
}

fn pod_security(set: &TypeSet, value: &Value, out: &mut Vec<u8>) {
    out.push(b'{');
    let mut members = Members { out, first: true };
    for name in &IN_SECURITY_CONTEXT[..3] {
        let on = value[*name] == true;
        members.name(&go_name(name)).extend_from_slice(on.to_string().as_bytes());
    }
    for name in &IN_SECURITY_CONTEXT[3..] {
        let said = value[*name].to_string();
        members.name(&go_name(name)).extend_from_slice(said.as_bytes());
    }
    let shape: Option<&Struct> = set.struct_named(POD_SECURITY).map(|id| set.get(id));
    for prop in shape.into_iter().flat_map(|shape| &shape.props) {
        let out = members.name(&go_name(&prop.name));
        write_member(set, prop, &value[&*prop.name], out);
    }
    out.push(b'}');
}

fn write_member(set: &TypeSet, prop: &Prop, value: &Value, out: &mut Vec<u8>) {
    match (value.is_null() && prop.pointer, value) {
        (true, _) => out.extend_from_slice(b"null"),
        (false, value) => write(set, prop.ty, value, out),
    }
}

fn write(set: &TypeSet, ty: TypeId, value: &Value, out: &mut Vec<u8>) {
    match (set.ty(ty), value) {
        (Type::Struct(id) | Type::AtomicStruct(id), value) => write_struct(set, *id, value, out),
        (Type::List(list), Value::Array(items)) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(set, list.element, item, out);
            }
            out.push(b']');
        }
        (Type::Map(map), Value::Object(entries)) => {
            let mut members = Members { out, first: true };
            members.out.push(b'{');
            sorted(entries).into_iter().for_each(|(name, value)| write(set, map.value, value, members.name(name)));
            out.push(b'}');
        }
        (Type::String, Value::Null) => out.extend_from_slice(b"\"\""),
        (Type::Bool, Value::Null) => out.extend_from_slice(b"false"),
        (Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString, Value::Null) => out.push(b'0'),
        (Type::Quantity, Value::Null) => out.extend_from_slice(b"\"0\""),
        (_, value) => proto::json::write_sorted(value, out),
    }
}

fn sorted(entries: &Map<String, Value>) -> Vec<(&str, &Value)> {
    let mut all: Vec<(&str, &Value)> = entries.iter().map(|(name, value)| (name.as_str(), value)).collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_have_the_names_of_go() {
        for (json, go) in [
            ("name", "Name"),
            ("hostIP", "HostIP"),
            ("dnsPolicy", "DNSPolicy"),
            ("fsGroup", "FSGroup"),
            ("seLinuxOptions", "SELinuxOptions"),
            ("httpGet", "HTTPGet"),
            ("stdinOnce", "StdinOnce"),
            ("serviceAccountName", "ServiceAccountName"),
            ("os", "OS"),
            ("cephfs", "CephFS"),
        ] {
            assert_eq!(go_name(json), go);
        }
    }

    #[test]
    fn a_template_is_shown_whole_and_as_upstream_keeps_it() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"hostNetwork": true, "restartPolicy": "Never",
            "serviceAccount": "s", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}},
            "ports": [{"containerPort": 80}]}], "securityContext": {"runAsUser": 5}}});
        let text = shown(TEMPLATE, &template).0;
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read["labels"], json!({"a": "b"}));
        let spec = &read["Spec"];
        assert_eq!(spec["RestartPolicy"], "Never");
        assert_eq!((&spec["Volumes"], &spec["NodeName"]), (&Value::Null, &json!("")));
        assert_eq!(
            (&spec["SecurityContext"]["HostNetwork"], &spec["SecurityContext"]["RunAsUser"]),
            (&json!(true), &json!(5))
        );
        assert!(spec.get("ServiceAccount").is_none() && spec.get("HostNetwork").is_none());
        let container = &spec["Containers"][0];
        assert_eq!(container["Resources"]["Requests"], json!({"cpu": "1"}));
        assert_eq!((&container["Ports"][0]["HostPort"], &container["TTY"]), (&json!(0), &json!(false)));
        assert!(text.starts_with("{\"labels\":{\"a\":\"b\"},\"Spec\":{"), "{text}");
    }
}
