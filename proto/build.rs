//! Compiles `api/**/*.proto` without `protoc`: prost types and tonic services for what Rust code handles as values,
//! and the schema table (`schema.txt`, read by `src/schema/load.rs`) for everything generic.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

/// Packages that Rust code handles as values; the rest exist only as schema.
const VALUE_PACKAGES: &[&str] = &[
    "k8s/io/api/core/v1.proto",
    "k8s/io/api/coordination/v1.proto",
    "k8s/io/api/authentication/v1.proto",
    "k8s/io/api/authorization/v1.proto",
    "k8s/io/api/certificates/v1.proto",
    "k8s/io/api/certificates/v1beta1.proto",
    "k8s/io/api/node/v1.proto",
    "k8s/io/api/storage/v1.proto",
    "k8s/io/api/resource/v1.proto",
];

/// gRPC files, each compiled on its own because several share a package name (`v1`).
const SERVICES: &[&str] = &[
    "cri/runtime_v1.proto",
    "node/csi_v1.proto",
    "node/deviceplugin_v1beta1.proto",
    "node/dra_v1.proto",
    "node/dra_health_v1alpha1.proto",
    "node/externaljwt_v1.proto",
    "node/kms_v2.proto",
    "node/pluginregistration_v1.proto",
    "node/podresources_v1.proto",
    "node/pods_v1alpha1.proto",
];

fn main() {
    println!("cargo::rerun-if-changed=api");
    println!("cargo::rerun-if-changed=build.rs");
    let root = PathBuf::from("api");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    let mut files = Vec::new();
    proto_files(&root.join("k8s"), &mut files);
    files.sort();
    let mut compiler = protox::Compiler::new([&root]).expect("the api folder is readable");
    compiler.include_imports(true);
    compiler.open_files(&files).expect("the api files are valid");
    let pool = compiler.descriptor_pool();
    std::fs::write(out.join("schema.txt"), Schema::new(&pool).text()).expect("OUT_DIR is writable");

    value_types(&root, &out);
    for service in SERVICES {
        service_types(&root, &out, service);
    }
}

fn proto_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the api folder is readable") {
        let path = entry.expect("the api folder is readable").path();
        if path.is_dir() {
            proto_files(&path, files);
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
}

fn value_types(root: &Path, out: &Path) {
    let mut set = protox::compile(VALUE_PACKAGES, [root]).expect("the api files are valid");
    set.file.retain(|f| f.package().starts_with("k8s."));
    let target = out.join("types");
    std::fs::create_dir_all(&target).expect("OUT_DIR is writable");
    prost_build::Config::new()
        .out_dir(&target)
        .btree_map(["."])
        .bytes(["."])
        .include_file("mod.rs")
        .compile_fds(set)
        .expect("the api files generate");
}

fn service_types(root: &Path, out: &Path, file: &str) {
    let set = protox::compile([file], [root]).expect("the service files are valid");
    let target = out.join(Path::new(file).with_extension(""));
    std::fs::create_dir_all(&target).expect("OUT_DIR is writable");
    tonic_prost_build::configure()
        .out_dir(&target)
        .btree_map(".")
        .include_file("mod.rs")
        .compile_fds(set)
        .expect("the service files generate");
}

/// Gathers the types in first-use order so that each distinct one has one line.
struct Schema {
    messages: Vec<MessageDescriptor>,
    struct_index: HashMap<String, usize>,
    types: BTreeMap<String, usize>,
    type_lines: Vec<String>,
}

impl Schema {
    fn new(pool: &DescriptorPool) -> Self {
        let mut messages: Vec<_> =
            pool.all_messages().filter(|m| m.full_name().starts_with("k8s.") && !m.is_map_entry()).collect();
        messages.sort_by(|a, b| a.full_name().cmp(b.full_name()));
        let struct_index = messages.iter().enumerate().map(|(i, m)| (m.full_name().to_owned(), i)).collect();
        Schema { messages, struct_index, types: BTreeMap::new(), type_lines: Vec::new() }
    }

    /// Lines `T` (types), `K` (kinds), `S` (struct), then for that struct `P` (JSON properties), `W` (wire fields) and
    /// `U` (unions); columns are separated by tabs.
    fn text(mut self) -> String {
        let mut body = String::new();
        let mut kinds = String::new();
        for (index, message) in self.messages.clone().iter().enumerate() {
            let rule = message_rule(message);
            let json = rule.as_ref().map(|r| text(r, "json")).unwrap_or_default();
            let atomic = rule.as_ref().is_some_and(|r| text(r, "map") == "atomic");
            let typed = rule.as_ref().is_some_and(|r| truth(r, "typed"));
            let form = if json.is_empty() { "-" } else { &json };
            writeln!(body, "S\t{}\t{form}\t{}\t{}", message.full_name(), u8::from(atomic), u8::from(typed)).unwrap();
            let mut props = Vec::new();
            if typed {
                let string = self.type_id("string".into());
                props.push(format!("P\tkind\t{string}\t-\t\t\t\t\t"));
                props.push(format!("P\tapiVersion\t{string}\t-\t\t\t\t\t"));
            }
            let mut wires = Vec::new();
            self.flatten(message, &mut props, Some(&mut wires));
            for line in props.iter().chain(&wires) {
                writeln!(body, "{line}").unwrap();
            }
            if let Some(rule) = &rule
                && let Some(Value::List(unions)) = rule.get_field_by_name("union").as_deref()
            {
                for union in unions {
                    let union = union.as_message().expect("a union is a message");
                    writeln!(body, "U\t{}\t{}", text(union, "discriminator"), list(union, "member")).unwrap();
                }
            }
            let extension =
                message.parent_pool().get_extension_by_name("orchestrator.kind").expect("options declare it");
            if message.options().has_extension(&extension)
                && let Value::List(values) = message.options().get_extension(&extension).as_ref()
            {
                for kind in values {
                    let kind = kind.as_message().expect("a kind is a message");
                    writeln!(
                        kinds,
                        "K\t{}\t{}\t{}\t{index}",
                        text(kind, "group"),
                        text(kind, "version"),
                        text(kind, "kind")
                    )
                    .unwrap();
                }
            }
        }
        let mut all = String::new();
        for line in &self.type_lines {
            writeln!(all, "T\t{line}").unwrap();
        }
        all + &body + &kinds
    }

    /// Appends the JSON properties of `message` in declaration order, inlined messages spread out; `wires` also gets
    /// the protobuf view, whose numbers point at properties by position.
    fn flatten(&mut self, message: &MessageDescriptor, props: &mut Vec<String>, mut wires: Option<&mut Vec<String>>) {
        let mut fields: Vec<_> = message.fields().collect();
        fields.sort_by_key(|f| f.path().last().copied());
        for field in fields {
            let rule = field_rule(&field);
            let flag = |name: &str| rule.as_ref().is_some_and(|r| truth(r, name));
            let word = |name: &str| rule.as_ref().map(|r| text(r, name)).unwrap_or_default();
            if flag("inline") {
                let Kind::Message(inner) = field.kind() else {
                    panic!("{} is inlined but no message", field.full_name())
                };
                let start = props.len();
                self.flatten(&inner, props, None);
                if let Some(wires) = wires.as_deref_mut() {
                    let target = self.struct_index[inner.full_name()];
                    wires.push(format!("W\t{}\t{start}\t{target}", field.number()));
                }
                continue;
            }
            let json = if word("json").is_empty() { field.name().to_owned() } else { word("json") };
            let ty = self.field_type(&field, &rule);
            let mut flags = String::new();
            let pointer = flag("pointer") || field.supports_presence() && !matches!(field.kind(), Kind::Message(_));
            for (on, letter) in [
                (pointer, 'p'),
                (flag("always"), 'a'),
                (flag("omit_zero"), 'z'),
                (flag("required"), 'r'),
                (flag("immutable"), 'i'),
            ] {
                if on {
                    flags.push(letter);
                }
            }
            if flags.is_empty() {
                flags.push('-');
            }
            if let Some(wires) = wires.as_deref_mut() {
                wires.push(format!("W\t{}\t{}\t-", field.number(), props.len()));
            }
            let enums = rule.as_ref().map(|r| list(r, "enum")).unwrap_or_default();
            props.push(format!(
                "P\t{json}\t{ty}\t{flags}\t{}\t{}\t{}\t{}\t{enums}",
                word("patch"),
                word("merge_key"),
                word("format"),
                word("default")
            ));
        }
    }

    fn field_type(&mut self, field: &FieldDescriptor, rule: &Option<DynamicMessage>) -> usize {
        let word = |name: &str| rule.as_ref().map(|r| text(r, name)).unwrap_or_default();
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else { unreachable!("a map field has an entry message") };
            let value = self.kind_type(&entry.map_entry_value_field().kind());
            let form = if word("map") == "atomic" { "atomic" } else { "granular" };
            return self.type_id(format!("map\t{value}\t{form}"));
        }
        let element = self.kind_type(&field.kind());
        if !field.is_list() {
            if word("map") == "atomic"
                && let Kind::Message(m) = field.kind()
            {
                return self.type_id(format!("atomic-struct\t{}", self.struct_index[m.full_name()]));
            }
            return element;
        }
        let keys = rule.as_ref().map(|r| list(r, "key")).unwrap_or_default();
        let form = if word("list").is_empty() { "atomic".to_owned() } else { word("list") };
        self.type_id(format!("list\t{element}\t{form}\t{keys}"))
    }

    fn kind_type(&mut self, kind: &Kind) -> usize {
        let line = match kind {
            Kind::String => "string".to_owned(),
            Kind::Bytes => "bytes".to_owned(),
            Kind::Bool => "bool".to_owned(),
            Kind::Int32 => "int32".to_owned(),
            Kind::Int64 => "int64".to_owned(),
            Kind::Double => "double".to_owned(),
            Kind::Message(m) => format!("struct\t{}", self.struct_index[m.full_name()]),
            other => panic!("no API type uses {other:?}"),
        };
        self.type_id(line)
    }

    fn type_id(&mut self, line: String) -> usize {
        if let Some(id) = self.types.get(&line) {
            return *id;
        }
        let id = self.type_lines.len();
        self.type_lines.push(line.clone());
        self.types.insert(line, id);
        id
    }
}

fn message_rule(message: &MessageDescriptor) -> Option<DynamicMessage> {
    let extension = message.parent_pool().get_extension_by_name("orchestrator.message")?;
    let options = message.options();
    options.has_extension(&extension).then(|| options.get_extension(&extension).as_message().cloned()).flatten()
}

fn field_rule(field: &FieldDescriptor) -> Option<DynamicMessage> {
    let extension = field.parent_pool().get_extension_by_name("orchestrator.field")?;
    let options = field.options();
    options.has_extension(&extension).then(|| options.get_extension(&extension).as_message().cloned()).flatten()
}

fn text(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field).expect("options.proto declares the field");
    value.as_str().expect("the field is a string").to_owned()
}

fn truth(message: &DynamicMessage, field: &str) -> bool {
    let value = message.get_field_by_name(field).expect("options.proto declares the field");
    value.as_bool().expect("the field is a bool")
}

fn list(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field).expect("options.proto declares the field");
    let words: Vec<_> = value.as_list().expect("the field is repeated").iter().filter_map(|v| v.as_str()).collect();
    words.join(",")
}
