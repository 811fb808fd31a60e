//! Properties of lists and selectors over arbitrary collections; seeds are fixed, so a failure comes again.

use serde_json::json;

use super::*;
use crate::resource::Resources;
use crate::store::{Change, Expect, Key, Write};

/// A small generator of arbitrary numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

const NAMESPACES: [&str; 3] = ["a", "b", "c-d"];
const COLORS: [&str; 3] = ["red", "green", "blue"];

async fn put(store: &Store, resource: &Resource, dice: &mut Dice) {
    let (namespace, name) = (dice.pick(&NAMESPACES), format!("n{}", dice.below(60)));
    let mut value = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": namespace,
        "uid": format!("{namespace}/{name}"), "labels": {"color": dice.pick(&COLORS)}}});
    let encoded = crate::store::encode(resource, &mut value, Vec::new(), None);
    let there = store.get(&resource.storage, namespace, &name).is_some();
    let expect = if there { Expect::Present } else { Expect::Absent };
    let gone = there && dice.below(4) == 0;
    let change = if gone { Change::Delete(encoded) } else { Change::Put(encoded) };
    let write = Write { resource: resource.storage.clone(), key: Key::new(namespace, &name), expect, change };
    store.commit(write).await.expect("the store takes it");
}

fn names(page: &Page) -> Vec<(String, u64)> {
    page.objects.iter().map(|o| (format!("{}/{}", o.key.namespace, o.key.name), o.revision)).collect()
}

#[tokio::test]
async fn pages_put_together_are_the_whole_list_at_one_version() {
    let resource = Resources::built_in().lookup("", "v1", "configmaps").expect("it is served");
    for seed in 1..30 {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let store = Store::open(None).expect("in memory");
        for _ in 0..dice.below(150) {
            put(&store, &resource, &mut dice).await;
        }
        let namespace = [None, Some(dice.pick(&NAMESPACES))][dice.below(2) as usize];
        let labels = dice.pick(&["", "color=red", "color!=red", "color in (red,blue)", "none"]);
        let selector = Selector::parse(&resource, labels, "").expect("a selector");
        let whole = page(&store, &resource, namespace, &ListOptions::default(), &selector).await.expect("a list");
        let mut options = ListOptions { limit: 1 + dice.below(9) as usize, ..ListOptions::default() };
        let mut together = Vec::new();
        loop {
            let part = page(&store, &resource, namespace, &options, &selector).await.expect("a page");
            assert_eq!(part.revision, whole.revision, "every page has the first one's version");
            assert!(part.objects.len() <= options.limit);
            let listed = together.len() + part.objects.len();
            if let Some(remaining) = part.remaining {
                assert_eq!(listed + remaining, whole.objects.len());
            }
            assert_eq!(part.remaining.is_some(), part.next.is_some() && labels.is_empty());
            together.extend(names(&part));
            let Some(token) = part.next else { break };
            options.continue_token = token.encode();
            // What happens meanwhile is of no concern.
            put(&store, &resource, &mut dice).await;
        }
        assert_eq!(together, names(&whole), "seed {seed}");
    }
}

#[tokio::test]
async fn shards_put_together_are_the_whole_list() {
    let resource = Resources::built_in().lookup("", "v1", "configmaps").expect("it is served");
    let (mut dice, store) = (Dice(7), Store::open(None).expect("in memory"));
    for _ in 0..200 {
        put(&store, &resource, &mut dice).await;
    }
    let whole = page(&store, &resource, None, &ListOptions::default(), &Selector::default()).await.expect("a list");
    let cuts = ["0x0000000000000000", "0x5555555555555555", "0xaaaaaaaaaaaaaaaa", "0x10000000000000000"];
    let mut together = Vec::new();
    for range in cuts.windows(2) {
        let text = format!("shardRange(object.metadata.uid, '{}', '{}')", range[0], range[1]);
        let selector = Selector::default().within(Some(shard::Shard::parse(&text).expect("a shard")));
        let part = page(&store, &resource, None, &ListOptions::default(), &selector).await.expect("a list");
        together.extend(names(&part));
    }
    together.sort();
    let mut wanted = names(&whole);
    wanted.sort();
    assert_eq!(together, wanted);
}

#[test]
fn tokens_survive_their_text() {
    let mut dice = Dice(3);
    for _ in 0..200 {
        let (namespace, name) = (dice.pick(&["", "a", "c-d"]), format!("n{}", dice.below(1000)));
        let revision = [None, Some(1 + dice.below(1 << 40))][dice.below(2) as usize];
        let token = Token { revision, after: Key::new(namespace, &name) };
        let namespaced = !namespace.is_empty();
        assert_eq!(Token::decode(&token.encode(), "", namespaced).expect("our own"), token);
    }
}
