//! Reading quantities of a spec as integers: milli-units and whole units, rounded up as Go rounds them.

use proto::apimachinery::pkg::api::resource::Quantity;

/// Thousandths, rounded up; what does not parse is zero.
pub fn milli(quantity: &Quantity) -> i64 {
    parse(quantity).map_or(0, |q| q.milli_value())
}

/// The same, beyond what an i64 has.
pub fn thousandths(quantity: &Quantity) -> i128 {
    parse(quantity).map_or(0, |q| q.thousandths())
}

/// Whole units, rounded up; what does not parse is zero.
pub fn whole(quantity: &Quantity) -> i64 {
    parse(quantity).map_or(0, |q| q.value())
}

/// The quantity itself; one that does not parse is zero.
pub fn amount(quantity: &Quantity) -> proto::quantity::Quantity {
    parse(quantity).unwrap_or_default()
}

fn parse(quantity: &Quantity) -> Option<proto::quantity::Quantity> {
    quantity.string.parse().ok()
}
