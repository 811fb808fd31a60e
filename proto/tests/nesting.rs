//! Nesting has a limit that no stack runs into, even without optimisation on a test's two megabytes.

use proto::schema::TypeSet;
use proto::{json, protobuf, yaml};

#[test]
fn nesting_is_refused_before_the_stack_ends() {
    refused_beyond(json::MAX_DEPTH);
}

/// As a server's threads are; what each level takes is a good deal less than that.
#[test]
fn threads_that_read_deep_have_the_limit_of_go() {
    let deep = std::thread::Builder::new().stack_size(256 << 20).spawn(|| {
        json::read_deep();
        refused_beyond(json::DEEPEST);
        let text = format!("{}1{}", "[".repeat(9_000), "]".repeat(9_000));
        assert_eq!(yaml::parse(text.as_bytes()).ok(), json::parse(text.as_bytes()).ok().map(|parsed| parsed.value));
        assert!(json::parse(text.as_bytes()).is_ok());
        let told = yaml::parse("[".repeat(3 << 20).as_bytes()).expect_err("too deep").to_string();
        assert_eq!(told, "yaml: exceeded max depth of 10000");
        let text = format!("{{\"a\":{}", "[".repeat(3 << 20));
        let told = json::parse(text.as_bytes()).expect_err("too deep").to_string();
        assert_eq!(told, "invalid character '[' exceeded max depth");
    });
    deep.expect("a thread").join().expect("it fits");
}

fn refused_beyond(most: usize) {
    let set = TypeSet::built_in();
    let name = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let id = set.struct_named(name).expect("declared");
    for depth in [most - 1, most + 1, 100_000] {
        let fits = depth < most;
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
