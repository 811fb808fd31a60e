//! Every crate that ships or builds the daemons has a licence that an Apache-2.0 project may use.

use std::process::Command;

use serde_json::Value;

/// Permissive licences only; a new one is added here with a reason in the commit.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

#[test]
fn every_dependency_has_an_allowed_licence() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(tests::repository().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages are listed");
    assert!(packages.len() > 50, "cargo metadata lists every dependency");
    let refused: Vec<String> = packages.iter().filter_map(refusal).collect();
    assert!(refused.is_empty(), "not allowed:\n{}", refused.join("\n"));
}

/// Why a package may not be used, or None.
fn refusal(package: &Value) -> Option<String> {
    let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
    let Some(text) = package["license"].as_str() else { return Some(format!("{name}: no licence given")) };
    let expression = match spdx::Expression::parse_mode(text, spdx::ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("{name}: {text}: {error}")),
    };
    let allowed = expression.evaluate(|requirement| ALLOWED.contains(&requirement.to_string().as_str()));
    (!allowed).then(|| format!("{name}: {text}"))
}

#[test]
fn a_copyleft_licence_is_refused() {
    let package = serde_json::json!({"name": "x", "version": "1.0.0", "license": "MPL-2.0 OR GPL-3.0-only"});
    assert!(refusal(&package).is_some());
    let package = serde_json::json!({"name": "x", "version": "1.0.0", "license": "GPL-3.0-only OR MIT"});
    assert!(refusal(&package).is_none());
}
