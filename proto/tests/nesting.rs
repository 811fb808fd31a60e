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

/// As `kubectl get -o yaml` and `?pretty=true` ask for it. A few hundred kilobytes became gigabytes of blanks.
#[test]
fn what_is_nested_deep_is_not_indented_without_end() {
    let wide = format!("[{}]", vec!["1"; 1000].join(","));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let text = format!("{}{wide}{}", open.repeat(190), close.repeat(190));
        let value = json::parse(text.as_bytes()).expect("JSON").value;
        let mut deeper = value.clone();
        for _ in 0..1000 {
            deeper = serde_json::json!({"a": deeper, "b": "x: y"});
        }
        let written = |value| {
            let mut yaml = Vec::new();
            yaml::write(value, &mut yaml);
            yaml
        };
        assert_eq!(yaml::parse(&written(&value)).expect("YAML"), value);
        assert!(written(&deeper).len() < 1 << 20, "{} bytes", written(&deeper).len());
        let mut compact = Vec::new();
        json::write_sorted(&deeper, &mut compact);
        let pretty = json::indent(&compact);
        assert!(pretty.len() < 2 << 20, "{} bytes", pretty.len());
        let lines = |text: &[u8]| String::from_utf8_lossy(text).split_whitespace().collect::<String>();
        assert_eq!(lines(&pretty), lines(&compact));
    }
}

/// What lies below the deepest indentation is JSON in YAML, which reads back as it was.
#[test]
fn flow_within_blocks_reads_back() {
    let mut value = serde_json::json!({"b": [1, "x: y", null, {"c": "<\u{1f600}>", "d": {}}], "e": "long ".repeat(40)});
    for _ in 0..185 {
        value = serde_json::json!({"a": value});
    }
    let mut deep = serde_json::json!([value]);
    for _ in 0..3 {
        deep = serde_json::json!({"k": deep});
    }
    let mut text = Vec::new();
    yaml::write(&deep, &mut text);
    let shown = String::from_utf8_lossy(&text);
    assert_eq!(yaml::parse(&text).map_err(|error| error.to_string()), Ok(deep), "{shown}");
}
