//! Expressions: read, checked, estimated and evaluated within their budget.

use super::feed;
use crate::cel::{Budget, Type, Value, compile, estimate};

#[test]
fn expressions_end_within_their_budget() {
    // As much room as threads of the server have.
    let thread = std::thread::Builder::new().stack_size(crate::cel::STACK).spawn(expressions);
    thread.expect("a thread").join().expect("no panic");
}

fn expressions() {
    let object =
        serde_json::json!({"spec": {"replicas": 3, "x": [1, "a", null, 1.5]}, "metadata": {"labels": {"app": "a"}}});
    let words = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ".",
        "?",
        ":",
        ",",
        "&&",
        "||",
        "!",
        "-",
        "*",
        "/",
        "%",
        "==",
        "<",
        " in ",
        "'",
        "\"",
        "r'",
        "b'",
        "\\u",
        "\\x",
        "0x",
        "1u",
        "1e308",
        "-9223372036854775808",
        "null",
        "object",
        "self",
        "has(",
        ".map(x,",
        ".all(y,",
        ".exists(",
        "size(",
        "matches(",
        ".format(",
        "optional.of(",
        "cel.bind(",
        "//",
        "\n",
        "\u{e9}",
    ];
    feed("cel", &words, |input| {
        let text = String::from_utf8_lossy(input);
        let variables = [("object", Type::Dyn), ("self", Type::Dyn)];
        let _ = estimate(&text, &variables, &[]);
        let Ok(program) = compile(&text, &variables) else { return };
        let values = [("object", Value::of(&object, &Type::Dyn)), ("self", Value::of(&object["spec"], &Type::Dyn))];
        drop(program.eval(&values, &mut Budget::new(50_000)));
    });
}
