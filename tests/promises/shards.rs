//! Clients may share a collection between them: each lists and watches the part whose hashes are its own (gate
//! `ShardedListAndWatch`).

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tests::{Api, ApiServer};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const OFF: [&str; 2] = ["--controllers=-*", "--scheduler=false"];
const UID: &str = "object.metadata.uid";
const COUNT: usize = 40;

/// 64-bit FNV-1a, by its definition.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A selector for the URL, and as it is told back.
fn shard(field: &str, ranges: &[(u128, u128)]) -> (String, String) {
    let told: Vec<String> =
        ranges.iter().map(|(start, end)| format!("shardRange({field}, '0x{start:016x}', '0x{end:016x}')")).collect();
    let told = told.join(" || ");
    (told.replace(' ', "%20").replace('|', "%7C").replace('\'', "%27"), told)
}

async fn fill(api: Api<'_>, namespace: &str) -> Vec<Value> {
    let mut made = Vec::new();
    for number in 0..COUNT {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let (code, object) =
            api.post(&path, &json!({"metadata": {"name": format!("m{number:02}")}})).await.expect("an answer");
        assert_eq!(code, 201, "{object}");
        made.push(object);
    }
    made
}

fn names(list: &Value) -> BTreeSet<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items.filter_map(|o| Some(o["metadata"]["name"].as_str()?.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_gets_its_part_and_all_parts_are_the_whole() {
    let flags = [OFF[0], OFF[1], "--feature-gates=ShardedListAndWatch=true"];
    let server = ApiServer::start("shards", &flags).expect("the server starts");
    let api = Api::new(&server);
    let made = fill(api, "default").await;
    let first = made[0]["metadata"]["resourceVersion"].as_str().expect("a version");
    let whole = 1_u128 << 64;
    let parts: [Vec<(u128, u128)>; 3] = [
        vec![(0, whole / 4)],
        vec![(whole / 4, whole / 2), (3 * (whole / 4), whole)],
        vec![(whole / 2, 3 * (whole / 4))],
    ];
    let mut all = 0;
    for ranges in &parts {
        let expected: BTreeSet<String> = made
            .iter()
            .filter(|object| {
                let hash = u128::from(hash(object["metadata"]["uid"].as_str().unwrap_or_default()));
                ranges.iter().any(|(start, end)| (*start..*end).contains(&hash))
            })
            .filter_map(|object| Some(object["metadata"]["name"].as_str()?.to_owned()))
            .collect();
        all += expected.len();
        let (asked, told) = shard(UID, ranges);
        let (code, list) = api.get(&format!("{MAPS}?shardSelector={asked}")).await.expect("an answer");
        assert_eq!((code, names(&list)), (200, expected.clone()), "{told}");
        assert_eq!(list["metadata"]["shardInfo"], json!({"selector": told}));

        // In pages, none of which is larger than asked for.
        let (mut path, mut paged) = (format!("{MAPS}?limit=4&shardSelector={asked}"), BTreeSet::new());
        loop {
            let (code, page) = api.get(&path).await.expect("an answer");
            let of_page = names(&page);
            assert!(code == 200 && of_page.len() <= 4, "{page}");
            assert_eq!(page["metadata"]["shardInfo"]["selector"], told.as_str());
            assert!(page["metadata"]["remainingItemCount"].is_null(), "nobody has counted the part");
            paged.extend(of_page);
            let Some(token) = page["metadata"]["continue"].as_str().filter(|t| !t.is_empty()) else { break };
            path = format!("{MAPS}?limit=4&shardSelector={asked}&continue={token}");
        }
        assert_eq!(paged, expected, "{told}");

        // A watch from before them, for those that came after the first.
        let path = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={first}&shardSelector={asked}");
        let mut connection = tests::Connection::http1(&server).await.expect("a connection");
        let answer = connection.call(http::Method::GET, &path, "", "").await.expect("an answer");
        let lines = answer.body().split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let seen: BTreeSet<String> = lines
            .map(|line| serde_json::from_slice::<Value>(line).expect("JSON"))
            .inspect(|event| assert_eq!(event["type"], "ADDED"))
            .filter_map(|event| Some(event["object"]["metadata"]["name"].as_str()?.to_owned()))
            .collect();
        let wanted: BTreeSet<String> = expected.into_iter().filter(|name| name != "m00").collect();
        assert_eq!(seen, wanted, "{told}");
    }
    assert_eq!(all, COUNT);
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_may_be_shared_out_and_what_is_no_selector_is_told() {
    let flags = [OFF[0], OFF[1], "--feature-gates=ShardedListAndWatch=true"];
    let server = ApiServer::start("namespace-shards", &flags).expect("the server starts");
    let api = Api::new(&server);
    let made = api.post("/api/v1/namespaces", &json!({"metadata": {"name": "other"}})).await.expect("an answer");
    assert_eq!(made.0, 201);
    fill(api, "other").await;
    let own = u128::from(hash("other"));
    for (ranges, count) in [([(own, own + 1)], COUNT), ([(0, own)], 0)] {
        let (asked, _) = shard("object.metadata.namespace", &ranges);
        let path = format!("/api/v1/configmaps?shardSelector={asked}&fieldSelector=metadata.namespace%3Dother");
        let (code, list) = api.get(&path).await.expect("an answer");
        assert_eq!((code, names(&list).len()), (200, count), "{ranges:?}");
    }
    for (asked, why) in [
        ("shardRange(object.metadata.name,'0x0000000000000000','0x8000000000000000')", "unsupported field path"),
        ("shardRange(object.metadata.uid,'0x8000000000000000','0x8000000000000000')", "must be less than end"),
        ("shardRange(object.metadata.uid,'0x0','0x8000000000000000')", "16-digit hex value"),
        ("nonsense", "invalid shard selector"),
    ] {
        for more in ["", "&watch=1&timeoutSeconds=1"] {
            let path = format!("{MAPS}?shardSelector={}{more}", asked.replace('\'', "%27"));
            let (code, said) = api.get(&path).await.expect("an answer");
            let message = said["message"].as_str().unwrap_or_default();
            assert!(code >= 400 && message.contains("invalid shard selector: ") && message.contains(why), "{said}");
        }
    }
}

#[tokio::test]
async fn without_the_gate_everybody_gets_all() {
    let server = ApiServer::start("no-shards", &OFF).expect("the server starts");
    let api = Api::new(&server);
    fill(api, "default").await;
    for asked in [shard(UID, &[(0, 1)]).0.as_str(), "nonsense"] {
        let (code, list) = api.get(&format!("{MAPS}?shardSelector={asked}")).await.expect("an answer");
        assert_eq!((code, names(&list).len()), (200, COUNT), "{asked}");
        assert!(list["metadata"]["shardInfo"].is_null(), "{list}");
    }
}
