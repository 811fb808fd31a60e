//! Nesting has a limit that no stack runs into, even without optimisation on a test's two megabytes.

use proto::schema::TypeSet;
use proto::{json, protobuf, yaml};

#[test]
fn nesting_is_refused_before_the_stack_ends() {
    let set = TypeSet::built_in();
    let name = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let id = set.struct_named(name).expect("declared");
    for depth in [json::MAX_DEPTH - 1, json::MAX_DEPTH + 1, 100_000] {
        let fits = depth < json::MAX_DEPTH;
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let text = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let parsed = json::parse(text.as_bytes());
            assert_eq!(parsed.is_ok(), fits, "{depth}");
            if let Ok(parsed) = parsed {
                let mut out = Vec::new();
                json::write_sorted(&parsed.value.clone(), &mut out);
                assert_eq!(out, text.as_bytes());
                yaml::write(&parsed.value, &mut out);
            }
            let _ = yaml::parse(text.as_bytes());
        }
        let _ = yaml::parse("- ".repeat(depth).as_bytes());
        let text = format!("{}{{}}{}", "{\"not\":".repeat(depth - 1), "}".repeat(depth - 1));
        let decoded = json::decode(set, id, text.as_bytes());
        assert_eq!(decoded.is_ok(), fits, "{depth}");
        if let Ok(decoded) = decoded {
            let (mut out, mut bytes) = (Vec::new(), Vec::new());
            json::write(set, id, &decoded.value, &mut out);
            assert_eq!(out, text.as_bytes());
            protobuf::encode(set, id, &decoded.value, &mut bytes);
            assert_eq!(protobuf::decode(set, id, &bytes), Ok(decoded.value));
        }
    }
}
