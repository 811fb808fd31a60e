use serde_json::json;

use super::*;

fn object() -> Type {
    let field = |json: &str, ty: Type| (types::escape(json).unwrap_or_default(), Field::new(json, ty));
    Type::Object(std::sync::Arc::new(ObjectType {
        name: "object".into(),
        fields: [
            field("name", Type::Text),
            field("replicas", Type::Int),
            field("ratio", Type::Double),
            field("tags", Type::list(Type::Text)),
            field("labels", Type::map(Type::Text)),
            field("a-b", Type::Int),
            field("any", Type::Dyn),
            field("blob", Type::Bytes),
            field("blobs", Type::list(Type::Bytes)),
        ]
        .into(),
    }))
}

fn run(text: &str) -> String {
    run_on(
        text,
        &json!({"name": "abc", "replicas": 3, "ratio": 2, "tags": ["x", "y"], "labels": {"k": "v"}, "a-b": 7, "any": 1}),
    )
}

fn run_on(text: &str, value: &serde_json::Value) -> String {
    let ty = object();
    let asks = Type::Opaque(AUTHORIZER);
    let program = match compile(text, &[("self", ty.clone()), ("authorizer", asks)]) {
        Ok(program) => program,
        Err(error) => return error,
    };
    let variables = [("self", Value::of(value, &ty)), ("authorizer", Value::Check(Check::default().into()))];
    match program.eval(&variables, &mut Budget::new(100_000)) {
        Ok(value) => calls::shown(&value),
        Err(Failure::Error(text)) => format!("error: {text}"),
        Err(Failure::OverBudget) => "over budget".into(),
    }
}

#[test]
fn expressions_have_their_values() {
    for (text, value) in [
        ("self.replicas + 1 * 2 == 5", "true"),
        ("self.ratio / 2.0", "1"),
        ("'a' in self.tags || self.tags.exists(t, t == 'y')", "true"),
        ("self.tags.all(t, size(t) == 1) && has(self.labels.k) && !has(self.labels.z)", "true"),
        ("self.tags.map(t, t + '!').join(',')", "x!,y!"),
        ("self.labels.all(k, self.labels[k] == 'v')", "true"),
        ("self.labels.exists(k, v, k == 'k' && v == 'v')", "true"),
        ("self.a__dash__b > 6 ? 'big' : 'small'", "big"),
        ("self.name.matches('^[a-c]+$') && self.name.startsWith('a')", "true"),
        ("self.name.substring(1).upperAscii()", "BC"),
        ("'%s has %d'.format([self.name, self.replicas])", "abc has 3"),
        ("quantity('1Gi').isGreaterThan(quantity('1000Mi'))", "true"),
        ("cidr('10.0.0.0/8').containsIP(ip('10.1.2.3'))", "true"),
        ("url('https://a.b:80/c?d=e').getHostname()", "a.b"),
        ("url('https://a/?b=1&c=2&b=3&%62=4').getQuery() == {'b': ['1', '3', '4'], 'c': ['2']}", "true"),
        ("'%x %X %x %d'.format(['\\u00e9k', b'\\xab\\x01', -255, 7])", "c3a96b AB01 -ff 7"),
        ("duration('1h') > duration('59m')", "true"),
        ("timestamp('2024-01-02T03:04:05Z').getFullYear()", "2024"),
        ("self.?labels[?'z'].orValue('none')", "none"),
        ("optional.of(1).optMap(x, x + 1).value()", "2"),
        ("[1, 2, 3].filter(x, x > 1).sum()", "5"),
        ("{'a': 1}['a'] == 1 && type(1) == int", "true"),
        ("-self.replicas < -2 && !(1 > 2)", "true"),
        ("1 / 0 == 1 || true", "true"),
        ("'\\u00e9\\n'.size()", "2"),
        ("dyn(1) == 1.0 && 1u < 2.5 && dyn(1) == 1u", "true"),
        ("sets.contains([1, 2], [2]) && [[1], [2]].flatten() == [1, 2]", "true"),
        ("[dyn([1]), dyn([dyn([2])])].flatten(2) == [1, 2] && [[1]].flatten(0) == [[1]]", "true"),
        ("[3, 1, 2].sortBy(x, -x) == [3, 2, 1] && ['bb', 'a'].sortBy(x, size(x)) == ['a', 'bb']", "true"),
        ("[1, 2].first().value() + [1, 2].last().value() == 3 && ![].first().hasValue()", "true"),
        ("optional.unwrap([optional.of(1), optional.none()]) == [1] && [optional.of(2)].unwrapOpt() == [2]", "true"),
        ("{'a': 1}.transformMapEntry(k, v, {k + 'b': v + 1}) == {'ab': 2}", "true"),
        ("[1, 2].transformMapEntry(i, v, v > 1, {v: i}) == {2: 1}", "true"),
    ] {
        assert_eq!(run(text), value, "{text}");
    }
}

#[test]
fn failures_say_what_is_missing() {
    assert_eq!(run("self.labels.z == ''"), "error: no such key: z");
    assert_eq!(run("self.tags[5] == ''"), "error: index out of bounds: 5");
    assert_eq!(run("1 / 0"), "error: division by zero");
    assert_eq!(run("[1, 1].transformMapEntry(i, v, {v: i})"), "error: insert failed: key 1 already exists");
    assert_eq!(run("[dyn(1), dyn('a')].sortBy(x, x)"), "error: list elements must have the same type");
    assert_eq!(run("[1].flatten(-1)"), "error: level must be non-negative");
    assert!(run("'abc'.reverse()").contains("found no matching overload for 'reverse'"));
    assert!(run("[1].transformMapEntry(i, v, v)").contains("cel.@mapInsert"));
    for (call, name) in
        [("[{}].isSorted()", "isSorted"), ("['a'].sum()", "sum"), ("[[1]].max()", "max"), ("[{}].sort()", "sort")]
    {
        assert!(run(call).contains(&format!("found no matching overload for '{name}'")), "{call}");
    }
    assert_eq!(run("[dyn(2), dyn(1)].max() == 2 && [].sum() == 0 && ['b', 'a'].min() == 'a'"), "true");
    assert_eq!(run("self.any + 'a' == 'b'"), "error: no such overload");
    assert_eq!(run("lists.range(100000000).all(x, x >= 0)"), "over budget");
}

/// Lists of two that are the same one, so deep that written out there would be more of them than memory has room for.
fn shared() -> String {
    format!("[1]{}", ".map(a, [a, a])".repeat(40))
}

#[test]
fn formats_are_filled() {
    for (text, said) in [
        ("'%%%s%%'.format([self.name])", "%abc%"),
        ("'%s'.format([['a\\'\\\"b', 'c']])", "[\"a'\\\"b\", \"c\"]"),
        ("'%s'.format([self.labels]) + '%s'.format([self.tags])", "{\"k\":\"v\"}[\"x\", \"y\"]"),
        (
            "'%s'.format([{'b': dyn(2.5), 'a': null}]) + '%s'.format([{2: dyn(true), 1: b'x'}])",
            "{\"a\":null, \"b\":2.500000}{1:b\"x\", 2:true}",
        ),
        ("'%s'.format([[timestamp('2023-02-03T23:31:20+00:00')]])", "[timestamp(\"2023-02-03T23:31:20Z\")]"),
        ("'%s'.format([[duration('2h')]]) + '%s'.format([duration('2ns')])", "[duration(\"7200s\")]0.000000002s"),
        ("'%s %s %s'.format([dyn(null), true, type('a')])", "null true string"),
        ("'%s'.format([[0.000000002, double('NaN'), double('-Inf')]])", "[0.000000, \"NaN\", \"-Inf\"]"),
        ("'%s %s %s'.format([0.000000002, 2.71, 1234567.5])", "2e-09 2.71 1.2345675e+06"),
        ("'%.3f %f'.format([1.2345, 2.71828])", "1.234 2.718280"),
        ("'%.1f %.0f %f'.format([-1234567.25, 999.0, 'Infinity'])", "-1,234,567.2 999 \u{221e}"),
        ("'%.6e'.format([1052.032911275])", "1.052033\u{202f}\u{d7}\u{202f}10\u{2070}\u{b3}"),
        ("'%e'.format([-0.00025])", "-2.500000\u{202f}\u{d7}\u{202f}10\u{207b}\u{2070}\u{2074}"),
        ("'%b %b %o %o %x %X %d'.format([-5, true, 11, 65535u, 30, 'Hi', 64u])", "-101 1 13 177777 1e 4869 64"),
        (
            "'%d'.format(dyn(['a']))",
            "error: error during formatting: decimal clause can only be used on integers, was given string",
        ),
        (
            "'%s'.format([dyn(quantity('1'))])",
            "error: error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given kubernetes.Quantity",
        ),
        (
            "'%s'.format([dyn([quantity('1')])])",
            "error: error during formatting: no formatting function for kubernetes.Quantity",
        ),
        ("'%d %d'.format(dyn([1]))", "error: index 1 out of range"),
        ("'%'.format(dyn([]))", "error: index 0 out of range"),
        ("'%'.format(dyn([1]))", "error: unexpected end of string"),
        ("('%' + 'a').format([1])", "error: could not parse formatting clause: unrecognized formatting clause \"a\""),
        ("strings.quote('a\\a\\\"\\u0001')", "\"a\\a\\\"\u{1}\""),
        ("'abc'.substring(5, 2)", "error: invalid substring range. start: 5, end: 2"),
        ("string(100000.0) + ' ' + string(1e6) + ' ' + string(1e-4) + ' ' + string(1e-5)", "100000 1e+06 0.0001 1e-05"),
    ] {
        assert_eq!(run(text), said, "{text}");
    }
}

#[test]
fn written_formats_are_checked_with_the_expression() {
    for (text, at, said) in [
        ("'%s %s'.format(['abc'])", 14, "index 1 out of range"),
        ("'%s'.format(['abc', 1])", 11, "too many arguments supplied to string.format (expected 1, got 2)"),
        ("'filler %'.format([])", 17, "unexpected end of string"),
        ("'%j'.format([123])", 11, "could not parse formatting clause: unrecognized formatting clause \"j\""),
        (
            "'%.34'.format([5.0])",
            13,
            "could not parse formatting clause: error while parsing precision: could not find end of precision specifier",
        ),
        (
            "'%.f'.format([5.0])",
            12,
            "could not parse formatting clause: error while parsing precision: error while converting precision to \
             integer: strconv.Atoi: parsing \"\": invalid syntax",
        ),
        (
            "'%d'.format([5.2])",
            13,
            "error during formatting: decimal clause can only be used on integers, was given double",
        ),
        (
            "'%s'.format([[quantity('1')]])",
            22,
            "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, \
             types, durations, and timestamps, was given kubernetes.Quantity",
        ),
        (
            "'%x'.format([2.5])",
            13,
            "error during formatting: only integers, byte buffers, and strings can be formatted as hex, was given double",
        ),
        (
            "'%f'.format([true])",
            13,
            "error during formatting: fixed-point clause can only be used on doubles, was given bool",
        ),
    ] {
        let expected = format!("ERROR: <input>:1:{}: {said}\n | {text}\n | {}^", at + 1, ".".repeat(at));
        assert_eq!(run(text), expected, "{text}");
    }
    assert_eq!(run("'%d %s'.format([self.any, self.tags])"), "1 [\"x\", \"y\"]");
}

#[test]
fn what_is_empty_has_the_type_of_what_it_stands_beside() {
    let output = |text: &str| {
        compile(text, &[("list", Type::list(Type::Text)), ("any", Type::Dyn)]).map(|p| p.output.to_string())
    };
    for (text, ty) in [
        ("any ? [] : ['a']", "list(string)"),
        ("any ? list : []", "list(string)"),
        ("any ? {} : {'a': [1]}", "map(string, list(int))"),
        ("[[], [1], []]", "list(list(int))"),
        ("[] + [1]", "list(int)"),
        ("any ? optional.none() : optional.of(true)", "optional_type(bool)"),
        ("(any ? optional.none() : optional.of(true)).orValue(false)", "bool"),
        ("[]", "list(dyn)"),
        ("{}", "map(dyn, dyn)"),
        ("[].map(x, x.y)", "list(dyn)"),
        ("any ? [] : [dyn(1)]", "list(dyn)"),
    ] {
        assert_eq!(output(text).as_deref(), Ok(ty), "{text}");
    }
    assert!(output("any ? [] : {}").is_err_and(|why| why.contains("found no matching overload for '_?_:_'")));
    assert!(output("(any ? list : []).all(x, x > 1)").is_err_and(|why| why.contains("'(string, int)'")));
    let patches = [("JSONPatch", Type::Dyn), ("any", Type::Dyn)];
    let program = compile("any ? [] : [JSONPatch{op: 'add', path: '/a'}]", &patches).expect("good");
    assert_eq!(program.output, Type::list(Type::made("JSONPatch")));
}

/// Whatever is in a literal has one type, and what may be of any type is none of those that are known.
#[test]
fn literals_hold_values_of_one_type() {
    for (text, at, said) in [
        ("[1, 'a', 2.0] == []", 4, "expected type 'int' but found 'string'"),
        ("self.any in [self.name, self.any]", 28, "expected type 'string' but found 'dyn'"),
        ("{'a': 1, 'b': 'c'} == {}", 14, "expected type 'int' but found 'string'"),
        ("{'a': 1, 2: 3} == {}", 9, "expected type 'string' but found 'int'"),
        ("[[1], ['a']] == []", 6, "expected type 'list(int)' but found 'list(string)'"),
        ("[self.tags, [?self.?any]] == []", 12, "expected type 'list(string)' but found 'list(dyn)'"),
    ] {
        let expected = format!("ERROR: <input>:1:{}: {said}\n | {text}\n | {}^", at + 1, ".".repeat(at));
        assert!(run(text).starts_with(&expected), "{text}: {}", run(text));
    }
    for text in [
        "[[], [1]] == [[], [1]] && [{}, {'a': [1]}].size() == 2 && [?self.?name, 'x'].size() == 2",
        "'%s'.format([[1, 'a', {'b': 2, 'c': 'd'}]]) == '[1, \"a\", {\"b\":2, \"c\":\"d\"}]'",
        "[self.any, dyn('a')].size() == 2",
    ] {
        assert_eq!(run(text), "true", "{text}");
    }
    assert!(run("[1, 'a'][0] + true == 1 || self.nope").contains("undefined field 'nope'"));
    assert!(!run("[1, 'a'].size() == 2 || self.nope").contains("expected type"), "types come first");
}

#[test]
fn urls_addresses_and_quantities_are_read_as_go_reads_them() {
    for (text, said) in [
        ("url('https://example.com/path with spaces/').getEscapedPath()", "/path%20with%20spaces/"),
        ("url('HTTPS://h.com/\\u00e9?q').getScheme()", "https"),
        ("isURL('mailto:a@b') && !isURL('example.com') && !isURL('https://a b/')", "true"),
        ("url('a')", "error: URL parse error during conversion from string: parse \"a\": invalid URI for request"),
        (
            "format.uri().validate('https://a b/').value()[0]",
            "parse \"https://a b/\": invalid character \" \" in host name",
        ),
        (
            "ip('1.2.3')",
            "error: IP Address \"1.2.3\" parse error during conversion from string: ParseAddr(\"1.2.3\"): IPv4 address too \
             short",
        ),
        ("ip('::ffff:1.2.3.4')", "error: IPv4-mapped IPv6 address \"::ffff:1.2.3.4\" is not allowed"),
        ("ip('fe80::1%e')", "error: IP address \"fe80::1%e\" with zone value is not allowed"),
        (
            "cidr('1.2.3.4/33')",
            "error: network address parse error during conversion from string: network address parse error during \
             conversion from string: netip.ParsePrefix(\"1.2.3.4/33\"): prefix length out of range",
        ),
        ("cidr('10.0.0.0/8').containsIP('x')", "error: no such overload"),
        ("quantity('9999999999999999999999').asInteger()", "error: cannot convert value to integer"),
        ("quantity('9999999999999999999999').isInteger()", "false"),
        ("quantity('1.5').isInteger() || quantity('5M').asInteger() != 5000000", "false"),
        ("quantity('1000m').isInteger() || quantity('500m').add(quantity('500m')).isInteger()", "false"),
    ] {
        assert_eq!(run(text), said, "{text}");
    }
}

#[test]
fn types_go_by_their_names() {
    for text in [
        "type(timestamp('2024-01-01T00:00:00Z')) == google.protobuf.Timestamp",
        "type(duration('1s')) == google.protobuf.Duration && type(1) != google.protobuf.Duration",
        "type(optional.of(1)) == optional_type && type(int) == type && type(null) == null_type",
    ] {
        assert_eq!(run(text), "true", "{text}");
    }
    assert!(run("type(1) == timestamp").contains("undeclared reference to 'timestamp'"));
    assert!(run("type(1) == google.protobuf.Any").contains("undeclared reference to 'google'"));
    let mark = |text: &str, at: usize| {
        format!("ERROR: <input>:1:{}: unsupported syntax: '`'\n | {text}\n | {}^", at + 1, ".".repeat(at))
    };
    assert_eq!(run("self.any.`a-b` == 1"), mark("self.any.`a-b` == 1", 9));
}

#[test]
fn moments_are_told_by_the_clocks_of_zones() {
    let at = "timestamp('2024-07-01T23:30:15.250Z')";
    for (text, number) in [
        ("getHours('02:30')", "2"),
        ("getMinutes('-02:15')", "15"),
        ("getDate('+01:00')", "2"),
        ("getHours('UTC') * 100 + @.getMilliseconds('')", "2550"),
        ("getHours('x:1')", "error: strconv.Atoi: parsing \"x\": invalid syntax"),
        ("getHours('Mars/Olympus')", "error: unknown time zone Mars/Olympus"),
        ("getHours('../../etc/passwd')", "error: time: invalid location name"),
    ] {
        assert_eq!(run(&format!("{at}.{}", text.replace('@', at))), number, "{text}");
    }
    // Where the machine has the zones.
    if crate::zone::is_known("America/New_York") {
        assert_eq!(run(&format!("{at}.getHours('America/New_York')")), "19");
        assert_eq!(run("timestamp('2024-01-01T00:30:00Z').getDayOfYear('America/New_York')"), "364");
        assert_eq!(run("timestamp('2090-07-01T12:00:00Z').getHours('Europe/Berlin')"), "14");
    }
    assert_eq!(run("duration('1m1.5s').getMilliseconds()"), "61500");
}

#[test]
fn what_values_share_is_walked_within_the_budget() {
    let shared = shared();
    for text in [
        format!("{shared} == {shared}"),
        format!("{shared} != {shared}"),
        format!("{shared} in [{shared}]"),
        format!("[{shared}].indexOf({shared}) == 0"),
        format!("[{shared}].lastIndexOf({shared}) == 0"),
        format!("[{shared}, {shared}].distinct().size() == 1"),
        format!("sets.contains([{shared}], [{shared}])"),
        format!("sets.intersects([{shared}], [{shared}])"),
        format!("optional.of({shared}) == optional.of({shared})"),
        format!("{{'a': {shared}}} == {{'a': {shared}}}"),
        format!("'%s'.format([{shared}]) == ''"),
        format!("'%s'.format([{{'a': {shared}}}]) == ''"),
        format!("[b'0123456789']{} == []", ".map(a, a + a)".repeat(40)),
        format!("['0123456789']{} == []", ".map(a, a + a)".repeat(40)),
        "[lists.range(10000)].all(b, lists.range(1000).map(i, b).flatten().size() == 1)".into(),
        "[lists.range(5000)].all(b, sets.contains(b, b))".into(),
    ] {
        assert_eq!(with_room(|| run(&text)), "over budget", "{text}");
    }
    let text = "[dyn([1]), dyn(2)] == [dyn([1u]), dyn(2.0)] && {'a': [1]} != {'a': [2]} && {'a': 1} != {'b': 1}";
    assert_eq!(run(text), "true");
}

#[test]
fn values_that_are_too_large_as_json_are_told() {
    let (shared, small) = (shared(), "{'a': [dyn(1), dyn('b'), dyn(optional.of(b'c'))]}");
    for (text, fits) in [(small, true), (shared.as_str(), false)] {
        let program = compile(text, &[]).expect(text);
        let value = with_room(|| program.eval(&[], &mut Budget::new(100_000)).map(|value| value.is_within(1000)));
        assert_eq!(value, Ok(fits), "{text}");
    }
}

#[test]
fn what_has_parts_is_no_key() {
    for key in ["[1]", "{1: 2}", "b'a'", "optional.of(1)"] {
        assert!(run(&format!("{{dyn({key}): 1}}.size() == 1")).starts_with("error: unsupported key type: "), "{key}");
    }
}

#[test]
fn parts_of_texts_are_found_by_their_letters() {
    for (text, at) in [
        ("'tacocat'.indexOf('a', 2)", "5"),
        ("'tacocat'.lastIndexOf('a', 4)", "1"),
        ("'aaa'.lastIndexOf('aa', 0)", "0"),
        ("'aaa'.lastIndexOf('aa', 1) + 'aaa'.lastIndexOf('aa')", "2"),
        ("'\\u00fca\\u00fc'.indexOf('\\u00fc', 1)", "2"),
        ("'\\u00fca\\u00fc'.lastIndexOf('\\u00fc', 1)", "0"),
        ("'a\\u00fc'.lastIndexOf('a', 1)", "0"),
        ("'abc'.lastIndexOf('') + 'abc'.indexOf('', 2)", "5"),
        ("'x'.indexOf('abc') + 'x'.lastIndexOf('abc')", "-2"),
        ("'abc'.indexOf('a', 4) + 'abc'.lastIndexOf('a', 4)", "-2"),
        ("'abc'.indexOf('a', 3) + 'abc'.lastIndexOf('a', 3)", "-2"),
        ("'abc'.indexOf('', 9) + 'abc'.lastIndexOf('', 9)", "18"),
        ("'abc'.indexOf('a', -1)", "error: index out of range: -1"),
        ("'abc'.lastIndexOf('a', -1)", "error: index out of range: -1"),
    ] {
        assert_eq!(run(text), at, "{text}");
    }
}

#[test]
fn only_what_has_an_order_is_sorted() {
    assert_eq!(run("[3.0, 1.0, 2.0].sort() == [1.0, 2.0, 3.0] && ['b', 'a'].sort() == ['a', 'b']"), "true");
    // A sort by a comparison that is no order may panic.
    let numbers = (0..40).map(|n| if n % 3 == 0 { "0.0 / 0.0".into() } else { format!("{}.0", 40 - n) });
    let numbers = numbers.collect::<Vec<String>>().join(", ");
    assert_eq!(run(&format!("[{numbers}].sort() == []")), "error: list elements must have the same type");
}

#[test]
fn complaints_about_many_types_are_short() {
    let error = run(&format!("size({})", vec!["[[1]]"; 200].join(", ")));
    let shown = error.matches("list(list(int))").count();
    assert!((10..100).contains(&shown), "{shown}");
}

#[test]
fn types_are_checked_with_the_place_of_the_mistake() {
    assert_eq!(run("self.nope > 1"), "ERROR: <input>:1:5: undefined field 'nope'\n | self.nope > 1\n | ....^");
    assert_eq!(
        run("self.name > 1"),
        "ERROR: <input>:1:11: found no matching overload for '_>_' applied to '(string, int)'\n | self.name > 1\n | ..........^"
    );
    assert_eq!(run("other"), "ERROR: <input>:1:1: undeclared reference to 'other' (in container '')\n | other\n | ^");
    assert!(run("self.replicas &&& true").starts_with("ERROR: <input>:1:"));
    assert_eq!(compile("1", &[]).map(|p| p.output), Ok(Type::Int));
}

#[test]
fn no_text_makes_the_parser_fail_otherwise_than_with_an_error() {
    let deep = "(".repeat(5000);
    for text in [
        "",
        "'",
        "[",
        "{",
        "a.",
        "a(",
        "1.e",
        "0x",
        "has(a)",
        "x.all(1, true)",
        "a ? b",
        "\u{1}",
        &deep,
        "[?",
        "b'\\x",
        "99999999999999999999",
    ] {
        assert!(with_room(|| compile(text, &[("a", Type::Dyn)])).is_err(), "{text}");
    }
}

/// Does something where as much of it can be walked as by the threads of the server.
fn with_room<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(super::STACK).spawn_scoped(scope, what);
        thread.expect("a thread").join().expect("no panic")
    })
}

/// Wraps something often.
fn wrapped(before: &str, inside: &str, after: &str, count: usize) -> String {
    format!("{}{inside}{}", before.repeat(count), after.repeat(count))
}

const NESTS: [(&str, &str, &str); 18] = [
    ("(", "1", ")"),
    ("(", "1", "+1)"),
    ("(1+", "1", ")"),
    ("[", "1", "]"),
    ("[?optional.of(", "1", ")]"),
    ("{'a':", "1", "}"),
    ("{", "1", ":1}"),
    ("dyn(", "1", ")"),
    ("", "self", ".any"),
    ("", "self", ".?any"),
    ("", "self", "[0]"),
    ("self.any[", "0", "]"),
    ("true?1:", "1", ""),
    ("(", "true", "?true:false)"),
    ("!(", "true", ")"),
    ("[1].map(x, ", "1", ")"),
    ("", "self.tags", ".map(t, t)"),
    ("", "optional.of(1)", ".optMap(x, x)"),
];

#[test]
fn trees_are_as_high_as_those_of_cel_go_and_no_higher() {
    with_room(|| {
        for (before, inside, after) in NESTS {
            let said = run(&wrapped(before, inside, after, 120));
            assert!(!said.contains("recursion limit"), "{before}{inside}{after}: {said}");
            // The highest that is walked; some of these have two nodes for each.
            run(&wrapped(before, inside, after, 124));
            run(&wrapped(before, inside, after, 248));
            let said = run(&wrapped(before, inside, after, 251));
            assert!(said.contains("expression recursion limit exceeded: 250"), "{before}{inside}{after}: {said}");
        }
    });
}

/// Each chain begins with a whole one in brackets: none of them is long, and nothing is deep when it is read.
#[test]
fn chains_on_top_of_chains_are_as_high_as_both() {
    with_room(|| {
        for (first, link) in [
            ("1", "+1"),
            ("1", "*1"),
            ("1", "<1"),
            ("1", " in [1]"),
            ("self", ".any"),
            ("self", ".?any"),
            ("self", "[0]"),
            ("self", "['a']"),
            ("self.tags", ".map(t, t)"),
            ("self", ".all(t, true)"),
            ("self", ".size()"),
            ("self", ".optMap(x, x)"),
        ] {
            let mut text = first.to_owned();
            for _ in 0..60 {
                text = format!("({text}){}", link.repeat(80));
            }
            for text in [&text, &format!("has({text}.a)"), &format!("[{text}"), &format!("{text}+")] {
                let said = run(text);
                assert!(said.contains("recursion limit exceeded"), "{link}: {}", &said[..said.len().min(200)]);
                assert_eq!(estimate(text, &[("self", Type::Dyn)], &[]), None);
            }
        }
        let balanced = (0..40).fold("true".to_owned(), |text, _| format!("({text}){}", "&&true".repeat(100)));
        assert!(run(&balanced).contains("recursion limit exceeded"));
    });
}

#[test]
fn long_chains_neither_overflow_the_stack_nor_hide_their_terms() {
    with_room(long_chains);
}

fn long_chains() {
    let many = |first: &str, link: &str, count: usize| format!("{first}{}", link.repeat(count));
    assert_eq!(run(&format!("{} == 201", many("1", "+1", 200))), "true");
    assert_eq!(run(&many("false", "||false", 3000)), "false");
    assert_eq!(run(&format!("{}||true", many("false", "||false", 3000))), "true");
    for text in [
        many("1", "+1", 20_000),
        many("1", "*1", 20_000),
        many("1", "<1", 20_000),
        many("self", ".any", 20_000),
        many("self", "[0]", 20_000),
        many("self.tags", ".map(t, t)", 20_000),
        many("1", " in [1]", 20_000),
        many("", ".", 20_000),
        many("", "(", 20_000),
        many("", "[", 20_000),
        many("", "{1:", 20_000),
        many("", "true?1:", 20_000),
        many("", "f(", 20_000),
        many("", "!-", 20_000),
    ] {
        let said = run(&text);
        let refused =
            said.contains("limit exceeded") || said.contains("exceeds limit") || said.contains("Syntax error");
        assert!(refused, "{}: {}", &text[..12], &said[..said.len().min(200)]);
    }
}

#[test]
fn a_text_that_is_too_long_is_not_read() {
    let text = format!("1{}", " ".repeat(99_999));
    assert_eq!(run(&text), "1");
    let said = "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100001, limit 100000";
    assert_eq!(run(&format!("{text} ")), said);
    assert_eq!(estimate(&format!("{text} "), &[], &[]), None);
}

/// A pattern is read where the expression is, and what may be costly is refused there.
#[test]
fn written_patterns_are_checked_with_the_expression() {
    for (text, value) in [
        ("self.name.matches('^[a-c]+$')", "true"),
        ("'a1b22'.findAll('[0-9]+')[1]", "22"),
        ("['a', 'b', 'c'].all(x, x.matches('[a-c]'))", "true"),
        ("self.name.matches('[' + 'a]')", "true"),
        ("self.name.find('(a{1000}){2}')", "error: error parsing regexp: invalid repeat count: `{2}`"),
    ] {
        assert_eq!(run(text), value, "{text}");
    }
    let mark = |said: &str, text: &str, at: usize| {
        format!("ERROR: <input>:1:{}: {said}\n | {text}\n | {}^", at + 1, ".".repeat(at))
    };
    let text = "self.name.matches('(a{1000}){2}')";
    assert_eq!(run(text), mark("invalid matches argument", text, 18));
    let text = "duration('soon') < duration('1h')";
    assert_eq!(run(text), mark("invalid duration argument", text, 9));
}

/// Patterns that are made while an expression runs are paid for by their size.
#[test]
fn a_text_that_grows_is_paid_for_before_it_is_made() {
    let long = "lists.range(1000).map(i, 'aaaaaaaaaa').join('')";
    assert_eq!(run(&format!("{long}.size() == 10000")), "true");
    assert_eq!(run(&format!("{long}.replace('a', {long}).size() > 0")), "over budget");
    assert_eq!(
        run("'%s%s'.format([self.name, self.name]) == 'abcabc' && 'aba'.replace('a', 'cc', 1) == 'ccba'"),
        "true"
    );
}

#[test]
fn texts_are_taken_apart() {
    for text in [
        "'a,b,'.split(',') == ['a', 'b', ''] && ''.split(',') == [''] && 'abc'.split('bc') == ['a', '']",
        "'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'a,b'.split(',', 1) == ['a,b'] && 'a,b'.split(',', 0) == []",
        "'a,b'.split(',', -1) == ['a', 'b'] && 'ab'.split('', 0) == [] && ''.split('') == []",
        "'\\u00e9bc'.split('') == ['\\u00e9', 'b', 'c'] && '\\u00e9bc'.split('', 2) == ['\\u00e9', 'bc']",
        "'abc'.split('', 1) == ['abc'] && 'aaa'.split('aa') == ['', 'a'] && 'x'.split('', 9) == ['x']",
        "self.name.split('b') == ['a', 'c'] && self.name.find('[bc]+') == 'bc' && self.name.find('x') == ''",
        "self.name.findAll('[ac]') == ['a', 'c'] && self.name.findAll('.', 2) == ['a', 'b']",
        "'ab'.findAll('') == ['', '', ''] && ('a' + 'b').findAll('b') == ['b']",
    ] {
        assert_eq!(run(text), "true", "{text}");
    }
    let text = "abc".to_owned();
    let lent = |text: &Value<'_>| matches!(text, Value::Text(text::Text::Lent("b")));
    let found = |expression: &str| {
        let program = compile(expression, &[("text", Type::Text)]).expect(expression);
        let found = program.eval(&[("text", Value::text(text.as_str()))], &mut Budget::new(100)).expect(expression);
        lent(&found) || found.walk().into_iter().flatten().any(|part| lent(&part))
    };
    assert!(found("text.split('')") && found("text.findAll('b')") && found("text.find('b')"), "no part is copied");
    // A value for each letter takes more than the letters do.
    assert_eq!(run(&often(9, "b.split('').size() == 10000")), "over budget");
    assert_eq!(run(&often(9, "b.findAll('').size() == 10001")), "over budget");
    assert_eq!(run(&often(9, "b.split('b').size() == 1 && b.findAll('b').size() == 0")), "true");
}

/// A text of ten thousand letters under the name `b`, and something that is evaluated so many times with it.
fn often(times: usize, what: &str) -> String {
    format!("[lists.range(1000).map(i, 'aaaaaaaaaa').join('')].all(b, lists.range({times}).all(i, {what}))")
}

#[test]
fn whatever_goes_through_a_long_text_is_paid_for() {
    assert_eq!(run(&often(100, "b != ''")), "true", "naming it is not");
    for what in [
        "'%x'.format([b]) != ''",
        "'%X'.format([b]) != ''",
        "'%x'.format([bytes(b)]) != ''",
        "[b, b].sortBy(x, x).size() == 2",
        "[authorizer.group(b).resource('pods')].size() == 1",
        "[authorizer.path('/' + b)].size() == 1",
        "format.dns1123Label().validate(b).hasValue()",
        "cidr('10.0.0.0/8').containsIP(b) || true",
        "cidr('10.0.0.0/8').containsCIDR(b) || true",
    ] {
        assert_eq!(run(&often(100, what)), "over budget", "{what}");
    }
    assert_eq!(run("lists.range(3000).all(i, '%.99f'.format([1e308]) != '')"), "over budget");
    assert_eq!(run("lists.range(3000).all(i, '%.9f'.format([1.0]) != '')"), "true");
    let parts = ["getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery"];
    for part in parts {
        let text = often(1, &format!("[url('http://a/' + b)].all(u, lists.range(100).all(i, u.{part}().size() >= 0))"));
        assert_eq!(run(&text), "over budget", "{part}");
    }
}

#[test]
fn bytes_are_paid_for_where_they_are_decoded() {
    use base64::Engine as _;
    let blob = base64::engine::general_purpose::STANDARD.encode(vec![7; 100_000]);
    let value = json!({"blob": blob, "blobs": [blob]});
    for (what, said) in [
        ("has(self.blob)", "true"),
        ("'blob' in dyn(self)", "true"),
        ("self.blob.size() > 0", "over budget"),
        ("self.?blob.hasValue()", "over budget"),
        ("self.blobs[0] != b''", "over budget"),
        ("self.blobs.all(b, true)", "over budget"),
        ("self.blobs.all(at, b, true)", "over budget"),
        ("b'' in self.blobs || true", "over budget"),
        ("self.blobs.indexOf(b'') < 0", "over budget"),
        ("(self.blobs + []).size() == 1", "over budget"),
        ("[self.blobs].flatten().size() == 1", "over budget"),
        ("sets.intersects([], self.blobs) || true", "over budget"),
        ("'%d'.format(self.blobs) == '' || true", "over budget"),
    ] {
        assert_eq!(run_on(&format!("lists.range(1000).all(i, {what})"), &value), said, "{what}");
    }
    assert_eq!(run_on("self.blob == self.blobs[0] && self.blob in self.blobs", &value), "true");
    let program = compile("b'abc'", &[]).expect("good");
    let once = || match program.eval(&[], &mut Budget::new(100)) {
        Ok(Value::Bytes(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    assert!(std::sync::Arc::ptr_eq(&once(), &once()), "what is written is not copied");
}

#[test]
fn compiling_made_patterns_uses_the_budget_up() {
    let pattern = "'.{0,1000}' + self.name";
    assert_eq!(run(&format!("self.name.matches({pattern})")), "true");
    let all = format!("lists.range(1000).all(i, !self.name.matches({pattern} + string(i)))");
    assert_eq!(run(&all), "over budget");
}

#[test]
fn a_type_that_doubles_at_each_step_is_refused() {
    let chain =
        |links: usize| (0..links).fold("[1]".to_owned(), |text, at| format!("{text}.map(v{at}, {{v{at}: v{at}}})"));
    assert_eq!(run(&format!("{} == {}", chain(1), chain(1))), "true");
    assert_eq!(run(&format!("{} == {}", chain(4), chain(4))), "error: unsupported key type: map");
    with_room(|| {
        for text in [chain(60), format!("{} == {}", chain(60), chain(60)), format!("[{}, {}]", chain(8), chain(60))] {
            let said = run(&text);
            assert!(said.contains("type has too many parts: limit 1000"), "{}", &said[..said.len().min(200)]);
            assert!(estimate(&text, &[], &[]).is_none());
        }
        // What is below the bound is shown in part, and joined where both have the same.
        let said = run(&format!("{} == 1", chain(8)));
        assert!(said.contains("applied to '(list(map(map(") && said.contains(", ...)") && said.len() < 5000, "{said}");
        let nested = format!("[{0}, {0}]", chain(8));
        assert!(!run(&nested).contains("ERROR"));
        assert!(!run(&format!("{}1{}", "{'a': ".repeat(240), "}".repeat(240))).contains("ERROR"));
    });
}

#[test]
fn what_has_no_members_lacks_each_of_them() {
    let run = |text| run_on(text, &json!({"name": "abc", "tags": ["x"], "any": null}));
    for (text, value) in [
        // As the old object of a creation.
        ("self.any.data.x == 1", "error: no such key: data"),
        ("self.any['data'] == 1", "error: no such key: data"),
        ("dyn(self.name).x == 1", "error: no such key: x"),
        ("dyn(self.name)[0] == 'a'", "error: no such key: 0"),
        ("has(self.any.data)", "false"),
        ("self.any.?data.orValue('none')", "none"),
        ("self.any[?'data'].orValue('none')", "none"),
    ] {
        assert_eq!(run(text), value, "{text}");
    }
}

#[test]
fn items_are_not_found_by_names() {
    for (text, value) in [
        ("dyn(self.tags).x == 1", "error: unsupported index type 'string' in list"),
        ("has(dyn(self.tags).x)", "error: unsupported index type 'string' in list"),
        ("dyn(self.tags)['x'] == 1", "error: unsupported index type 'string' in list"),
        ("dyn(self.tags)[dyn(true)] == 1", "error: unsupported index type 'bool' in list"),
        ("dyn(self.tags)[dyn(0.5)] == 1", "error: unsupported index value 0.5 in list"),
        ("self.tags[-1] == 'x'", "error: index out of bounds: -1"),
        ("dyn(self.tags)[dyn(1.0)]", "y"),
    ] {
        assert_eq!(run(text), value, "{text}");
    }
}

#[test]
fn failed_conversions_name_the_message_that_was_wanted() {
    for (text, to) in
        [("timestamp(self.name)", "google.protobuf.Timestamp"), ("duration(self.name)", "google.protobuf.Duration")]
    {
        let why = format!("error: type conversion error from 'string' to '{to}'");
        assert_eq!(run(&format!("string({text})")), why);
    }
}
