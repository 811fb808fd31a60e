//! The capacities of a device, and in which amounts they may be asked for where several may use it.

use proto::quantity::Quantity;
use serde_json::Value;

use super::rules::amount;
use super::{has, list};
use crate::field_error::Report;
use crate::validate::amounts::quantity;

/// Amounts of which one can be chosen.
const CHOICES: usize = 10;

/// `shared`: the device may be allocated several times.
pub fn check(report: &mut Report, capacity: &Value, shared: bool) {
    report.with(capacity, "requestPolicy", |r, policy| {
        if !shared {
            return r.forbidden("allowMultipleAllocations must be true");
        }
        let Some(most) = amount(capacity, "value") else { return };
        let (values, range) = (list(policy, "validValues"), has(policy, "validRange"));
        let name = match (values.is_empty(), range) {
            (false, true) => {
                let why = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the \
                           same time";
                return r.forbidden(why);
            }
            (true, false) => return,
            (false, false) => "validValues",
            (true, true) => "validRange",
        };
        let Some(usual) = amount(policy, "default") else {
            return r.miss("default", &format!("required when {name} is defined"));
        };
        r.at(name, |r| match range {
            true => in_range(r, &policy["validRange"], usual, most),
            false => choices(r, values, usual, most),
        });
    });
}

fn choices(report: &mut Report, values: &[Value], usual: Quantity, most: Quantity) {
    let amounts: Vec<Quantity> = values.iter().filter_map(quantity).collect();
    let mut at = |index: usize, check: &mut dyn FnMut(&mut Report)| report.index(index, |r| check(r));
    for (index, pair) in amounts.windows(2).enumerate() {
        if pair[0] > pair[1] {
            let why = "values must be sorted in ascending order";
            at(index + 1, &mut |r| r.invalid(pair[1].to_string().as_str(), why));
        }
    }
    if amounts.len() > CHOICES {
        report.too_many(amounts.len(), CHOICES);
    } else {
        for (index, amount) in amounts.iter().enumerate().filter(|(_, amount)| **amount > most) {
            let why = format!("option is larger than capacity value: {most}");
            at(index, &mut |r| r.invalid(amount.to_string().as_str(), &why));
        }
        for (index, amount) in amounts.iter().enumerate() {
            if amounts[..index].iter().any(|before| before.value() == amount.value()) {
                at(index, &mut |r| r.duplicate(amount.value().to_string().as_str()));
            }
        }
    }
    // Of too many none is looked at, so none is the default either.
    if amounts.len() > CHOICES || !amounts.contains(&usual) {
        report.invalid(usual.to_string().as_str(), "default value is not valid according to the requestPolicy");
    }
}

fn in_range(report: &mut Report, range: &Value, usual: Quantity, most: Quantity) {
    let Some(low) = amount(range, "min") else { return report.miss("min", "required when validRange is defined") };
    let mut bad = |name: &str, value: Quantity, why: String| report.bad(name, value.to_string().as_str(), why);
    if low > most {
        bad("min", low, format!("min is larger than capacity value: {most}"));
    }
    if usual < low {
        bad("default", usual, format!("default is less than min: {low}"));
    }
    let high = amount(range, "max");
    if let Some(high) = high {
        if low > high {
            bad("max", low, format!("min is larger than max: {high}"));
        }
        if high > most {
            bad("max", high, format!("max is larger than capacity value: {most}"));
        }
        if usual > high {
            bad("default", usual, format!("default is more than max: {high}"));
        }
    }
    let Some(step) = amount(range, "step") else { return };
    if step.sign() <= 0 {
        return bad("step", step, "must be greater than zero".into());
    }
    let mut first = low;
    first.add(step);
    if first > most {
        bad("step", step, format!("one step {first} is larger than capacity value: {most}"));
    }
    for value in [Some(usual), high].into_iter().flatten() {
        let off = value.value().saturating_sub(low.value()).checked_rem(step.value()).unwrap_or(0);
        if off != 0 {
            bad("step", value, format!("value is not a multiple of a given step ({step}) from ({low})"));
        }
    }
}
