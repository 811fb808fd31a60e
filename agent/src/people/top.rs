//! `node-agent top`: who uses what, and who waits for it; live on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::client::{Agent, AskError};
use super::table::{bytes, render};
use super::{Output, TopOptions, bars};

pub async fn run(options: &TopOptions) -> Result<(), AskError> {
    let agent = Agent::connect(&options.common.root_dir).await?;
    if options.common.output == Output::Json {
        let stats = agent.stats().await?;
        writeln!(std::io::stdout().lock(), "{stats}")?;
        return Ok(());
    }
    let live = !options.once && std::io::stdout().is_terminal();
    loop {
        let page = page(&agent.stats().await?);
        let mut out = std::io::stdout().lock();
        if live {
            // Home, and clear what is below: less flicker than clearing first.
            write!(out, "\x1b[H{}\x1b[J", page.replace('\n', "\x1b[K\n"))?;
        } else {
            write!(out, "{page}")?;
        }
        out.flush()?;
        drop(out);
        if !live {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(options.interval)).await;
    }
}

fn page(stats: &Value) -> String {
    let mut out = String::new();
    for name in ["cpu", "memory", "io"] {
        if let Some(p) = bars::read(Path::new("/"), name) {
            out.push_str(&format!(
                "{name:<7} {} some {:5.1}%  full {:5.1}%\n",
                bars::bar(p.some[0]),
                p.some[0],
                p.full[0]
            ));
        }
    }
    let node = &stats["node"];
    out.push_str(&format!(
        "node    cpu {}  memory {}\n\n",
        cores(node["cpu"]["usageNanoCores"].as_u64()),
        node["memory"]["workingSetBytes"].as_u64().map_or_else(|| "-".into(), bytes)
    ));
    let mut pods: Vec<&Value> = stats["pods"].as_array().map(|p| p.iter().collect()).unwrap_or_default();
    pods.sort_by_key(|p| std::cmp::Reverse(p["cpu"]["usageNanoCores"].as_u64()));
    let rows: Vec<Vec<String>> = pods.into_iter().map(row).collect();
    out.push_str(&render(&["POD", "CPU", "MEMORY", "CPU WAIT", "MEM WAIT", "IO WAIT", "RX", "TX"], &rows));
    out
}

fn row(pod: &Value) -> Vec<String> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let amount = |v: &Value| v.as_u64().map_or_else(|| "-".into(), bytes);
    let wait = |v: &Value| v["psi"]["some"]["avg10"].as_f64().map_or_else(|| "-".into(), |p| format!("{p:.1}%"));
    vec![
        format!("{}/{}", text(&pod["podRef"]["namespace"]), text(&pod["podRef"]["name"])),
        cores(pod["cpu"]["usageNanoCores"].as_u64()),
        amount(&pod["memory"]["workingSetBytes"]),
        wait(&pod["cpu"]),
        wait(&pod["memory"]),
        wait(&pod["io"]),
        amount(&pod["network"]["rxBytes"]),
        amount(&pod["network"]["txBytes"]),
    ]
}

/// Cores in thousandths.
fn cores(nanos: Option<u64>) -> String {
    nanos.map_or_else(|| "-".into(), |n| format!("{}m", n / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_busiest_pod_comes_first_and_what_is_not_known_is_a_dash() {
        let pod = |name: &str, nanos: Option<u64>| json!({"podRef": {"name": name, "namespace": "n"}, "cpu": {"usageNanoCores": nanos, "psi": {"some": {"avg10": 1.26}}}});
        let page = page(&json!({"node": {}, "pods": [pod("idle", None), pod("busy", Some(1_500_000_000))]}));
        let (busy, idle) = (page.find("n/busy   1500m   -        1.3%").unwrap(), page.find("n/idle   -").unwrap());
        assert!(busy < idle);
    }
}
