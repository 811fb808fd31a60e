//! Ten thousand custom resources cost no more than ten thousand built-in ones of the same shape.
//!
//! CPU is the server's own time and memory what it keeps when it rests, so a busy machine moves both little; what it does
//! move is in the factors.

use tests::twins::{Cost, PAIRS};

const COUNT: usize = 10_000;
const CLIENTS: usize = 8;
/// By how much CPU a custom kind may look dearer here, where two runs of the same kind differ by a quarter on a machine that
/// does much else; `load --twins` tells the relation in the quiet.
const CPU: f64 = 2.0;
/// By how much memory: custom objects say their group in each object and list of owners.
const MEMORY: f64 = 1.5;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_custom_objects_cost_no_more_than_built_in_ones() {
    for [built_in, custom] in &PAIRS {
        let theirs = custom.cost(COUNT, CLIENTS).await.expect("it is measured");
        let ours = built_in.cost(COUNT, CLIENTS).await.expect("it is measured");
        println!("{}: {ours:?}\n{}: {theirs:?}", built_in.name, custom.name);
        for (what, most, part) in [
            ("a create", CPU, (|cost| cost.create.as_secs_f64()) as fn(&Cost) -> f64),
            ("a patch", CPU, |cost| cost.patch.as_secs_f64()),
            ("memory", MEMORY, |cost| cost.memory_bytes),
            // Items of custom kinds say their kind and version, as upstream's do; for each byte it costs the same.
            ("a list", CPU, |cost| cost.list.as_secs_f64() / f64::from(u32::try_from(cost.listed_bytes).unwrap_or(1))),
        ] {
            let ratio = part(&theirs) / part(&ours);
            assert!(ratio < most, "{} in {what}: {ratio:.2} of {}", custom.name, built_in.name);
        }
    }
}
