//! Kubernetes' own functions: optional values, quantities, addresses, URLs and formats of names.

use std::collections::HashMap;
use std::net::IpAddr;

use proto::quantity::Quantity;

use super::eval::{Budget, Failure};
use super::value::Value;
use crate::go_url::{self, Url};
use crate::status::quote;
use crate::{go_address, names};

type Out<'a> = Result<Value<'a>, Failure>;

/// Calls a function of this module; None for others.
pub fn call<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    let _ = budget.spend(1);
    optional(name, args)
        .or_else(|| quantity(name, args))
        .or_else(|| address(name, args))
        .or_else(|| network(name, args, budget))
        .or_else(|| url(name, args, budget))
        .or_else(|| format(name, args, budget))
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0) | Value::Duration(0) => true,
        Value::Double(number) => *number == 0.0,
        Value::Text(text) => text.is_empty(),
        value if value.is_list() || value.is_map() => super::calls::size_of(value) == 0,
        _ => false,
    }
}

fn optional<'a>(name: &str, args: &[Value<'a>]) -> Option<Out<'a>> {
    Some(Ok(match (name, args) {
        ("optional.of", [value]) => Value::some(value.clone()),
        ("optional.ofNonZeroValue", [value]) if is_zero(value) => Value::Optional(None),
        ("optional.ofNonZeroValue", [value]) => Value::some(value.clone()),
        ("optional.none", []) => Value::Optional(None),
        ("hasValue", [Value::Optional(inner)]) => Value::Bool(inner.is_some()),
        ("value", [Value::Optional(Some(inner))]) => (**inner).clone(),
        ("value", [Value::Optional(None)]) => return Some(Err(Failure::new("optional.none() dereference"))),
        ("or", [first @ Value::Optional(Some(_)), _]) => first.clone(),
        ("or", [Value::Optional(None), second]) => second.clone(),
        ("orValue", [Value::Optional(Some(inner)), _]) => (**inner).clone(),
        ("orValue", [Value::Optional(None), other]) => other.clone(),
        _ => return None,
    }))
}

fn quantity<'a>(name: &str, args: &[Value<'a>]) -> Option<Out<'a>> {
    use Value::{Bool, Int, Text};
    Some(Ok(match (name, args) {
        ("quantity", [Text(text)]) => match text.parse() {
            Ok(quantity) => Value::Quantity(quantity),
            Err(error) => return Some(Err(Failure::new(error.to_string()))),
        },
        ("isQuantity", [Text(text)]) => Bool(text.parse::<Quantity>().is_ok()),
        ("sign", [Value::Quantity(a)]) => Int(a.sign().into()),
        ("isInteger", [Value::Quantity(a)]) => Bool(a.as_integer().is_some()),
        ("asInteger", [Value::Quantity(a)]) => match a.as_integer() {
            Some(number) => Int(number),
            None => return Some(Err(Failure::new("cannot convert value to integer"))),
        },
        ("asApproximateFloat", [Value::Quantity(a)]) => {
            let exact = if a.is_integer() { a.value() as f64 } else { a.milli_value() as f64 / 1000.0 };
            Value::Double(exact)
        }
        ("add" | "sub", [Value::Quantity(a), other]) => {
            let other = match other {
                Value::Quantity(b) => *b,
                Int(number) => Quantity::from_integer(*number, a.format()),
                _ => return None,
            };
            let mut sum = *a;
            if name == "add" {
                sum.add(other)
            } else {
                sum.subtract(other)
            }
            Value::Quantity(sum)
        }
        ("isLessThan", [Value::Quantity(a), Value::Quantity(b)]) => Bool(a < b),
        ("isGreaterThan", [Value::Quantity(a), Value::Quantity(b)]) => Bool(a > b),
        ("compareTo", [Value::Quantity(a), Value::Quantity(b)]) => Int(a.cmp(b) as i64),
        _ => return None,
    }))
}

/// An address without zone; IPv4 within IPv6 is neither.
fn parse_ip(text: &str) -> Result<IpAddr, Failure> {
    let wrong = |why| format!("IP Address {} parse error during conversion from string: {why}", quote(text));
    let (address, zoned) = go_address::parse(text).map_err(|why| Failure::new(wrong(why)))?;
    if zoned {
        return Err(Failure::new(format!("IP address {} with zone value is not allowed", quote(text))));
    }
    refuse_mapped(address, text)?;
    Ok(address)
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), Failure> {
    // Upstream says so in both of the functions that an error passes.
    const WRONG: &str = "network address parse error during conversion from string: ";
    let (address, bits) = go_address::parse_prefix(text).map_err(|why| Failure::new(format!("{WRONG}{WRONG}{why}")))?;
    match refuse_mapped(address, text) {
        Err(Failure::Error(why)) => Err(Failure::new(format!("{WRONG}{why}"))),
        _ => Ok((address, bits)),
    }
}

fn refuse_mapped(address: IpAddr, text: &str) -> Result<(), Failure> {
    match address {
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => {
            Err(Failure::new(format!("IPv4-mapped IPv6 address {} is not allowed", quote(text))))
        }
        _ => Ok(()),
    }
}

fn address<'a>(name: &str, args: &[Value<'a>]) -> Option<Out<'a>> {
    use Value::{Bool, Int, Ip, Text};
    Some(Ok(match (name, args) {
        ("ip", [Text(text)]) => return Some(parse_ip(text).map(Ip)),
        ("isIP", [Text(text)]) => Bool(parse_ip(text).is_ok()),
        ("ip.isCanonical", [Text(text)]) => return Some(parse_ip(text).map(|ip| Bool(ip.to_string() == **text))),
        ("family", [Ip(ip)]) => Int(if ip.is_ipv4() { 4 } else { 6 }),
        ("isUnspecified", [Ip(ip)]) => Bool(ip.is_unspecified()),
        ("isLoopback", [Ip(ip)]) => Bool(ip.is_loopback()),
        ("isLinkLocalMulticast", [Ip(ip)]) => Bool(match ip {
            IpAddr::V4(four) => four.octets()[..3] == [224, 0, 0],
            IpAddr::V6(six) => six.segments()[0] & 0xff0f == 0xff02,
        }),
        ("isLinkLocalUnicast", [Ip(ip)]) => Bool(is_link_local(ip)),
        ("isGlobalUnicast", [Ip(ip)]) => Bool(
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local(ip))
                && *ip != IpAddr::from([255, 255, 255, 255]),
        ),
        _ => return None,
    }))
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// The first address of a network.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(four) & mask).into())
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(six) & mask).into())
        }
    }
}

fn holds((network, bits): (IpAddr, u8), (address, other): (IpAddr, u8)) -> bool {
    network.is_ipv4() == address.is_ipv4() && bits <= other && masked(address, bits) == masked(network, bits)
}

fn network<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    use Value::{Bool, Cidr, Int, Ip, Text};
    let width = |ip: &IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    // A text that is no address is told, and that twice.
    if let [Cidr(..), Text(text)] = args
        && let Err(failure) = budget.traverse(text.len().saturating_mul(2))
    {
        return Some(Err(failure));
    }
    Some(Ok(match (name, args) {
        ("cidr", [Text(text)]) => return Some(parse_cidr(text).map(|(ip, bits)| Cidr(ip, bits))),
        ("isCIDR", [Text(text)]) => Bool(parse_cidr(text).is_ok()),
        ("containsIP", [Cidr(ip, bits), Ip(other)]) => Bool(holds((*ip, *bits), (*other, width(other)))),
        ("containsIP", [Cidr(ip, bits), Text(text)]) => {
            // What is wrong with the text is not told.
            let other = parse_ip(text).map_err(|_| Failure::no_overload());
            return Some(other.map(|other| Bool(holds((*ip, *bits), (other, width(&other))))));
        }
        ("containsCIDR", [Cidr(ip, bits), Cidr(other, more)]) => Bool(holds((*ip, *bits), (*other, *more))),
        ("containsCIDR", [Cidr(ip, bits), Text(text)]) => {
            return Some(parse_cidr(text).map(|other| Bool(holds((*ip, *bits), other))));
        }
        ("ip", [Cidr(ip, _)]) => Ip(*ip),
        ("masked", [Cidr(ip, bits)]) => Cidr(masked(*ip, *bits), *bits),
        ("prefixLength", [Cidr(_, bits)]) => Int((*bits).into()),
        _ => return None,
    }))
}

fn url<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    let text = match (name, args) {
        ("isURL", [Value::Text(text)]) => return Some(Ok(Value::Bool(Url::of_request(text).is_ok()))),
        ("url", [Value::Text(text)]) => {
            // A fragment is looked at only by the second.
            let read = Url::of_request(text).and_then(|_| Url::parse(text));
            let wrong = |why| Failure::new(format!("URL parse error during conversion from string: {why}"));
            return Some(read.map(|_| Value::Url((&**text).into())).map_err(wrong));
        }
        (_, [Value::Url(text)]) => text.clone(),
        _ => return None,
    };
    // Whatever is asked for, the whole of it is gone through.
    if let Err(failure) = budget.traverse(text.len()) {
        return Some(Err(failure));
    }
    let url = Url::parse(&text).ok()?;
    Some(Ok(match name {
        "getScheme" => Value::text(url.scheme),
        "getHost" => Value::text(url.host),
        "getHostname" => Value::text(url.hostname().to_owned()),
        "getPort" => Value::text(url.port().to_owned()),
        "getEscapedPath" => Value::text(url.path),
        "getQuery" => asked(&url.query),
        _ => return None,
    }))
}

/// The values of each key of a query, in the order in which the keys first come.
fn asked<'a>(query: &str) -> Value<'a> {
    let mut entries: Vec<(Value<'a>, Vec<Value<'a>>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (key, value) in go_url::pairs(query) {
        let value = Value::text(value);
        match places.get(&key).and_then(|at| entries.get_mut(*at)) {
            Some((_, values)) => values.push(value),
            None => {
                entries.push((Value::text(key.clone()), vec![value]));
                places.insert(key, entries.len() - 1);
            }
        }
    }
    Value::Map(entries.into_iter().map(|(key, values)| (key, Value::list(values))).collect())
}

const FORMATS: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// About how long the regular expression of a format is, by which looking at a text is paid for.
fn pattern_size(format: &str) -> usize {
    match format {
        "dns1123Label" | "dns1035Label" | "dns1123LabelPrefix" | "dns1035LabelPrefix" => 30,
        "dns1123Subdomain" | "dns1123SubdomainPrefix" | "qualifiedName" => 60,
        "labelValue" => 40,
        _ => 128,
    }
}

fn format<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    let known = |name: &str| FORMATS.into_iter().find(|f| *f == name);
    match (name, args) {
        ("format.named", [Value::Text(name)]) => {
            Some(Ok(known(name).map_or(Value::Optional(None), |f| Value::some(Value::Format(f)))))
        }
        (name, []) => Some(Ok(Value::Format(known(name.strip_prefix("format.")?)?))),
        ("validate", [Value::Format(format), Value::Text(text)]) => {
            let steps = (text.len() + 1).div_ceil(10).saturating_mul(pattern_size(format).div_ceil(4));
            if let Err(failure) = budget.spend(steps) {
                return Some(Err(failure));
            }
            let complaints = complaints(format, text);
            let list = complaints.into_iter().map(Value::text).collect::<Vec<_>>();
            Some(Ok(if list.is_empty() { Value::Optional(None) } else { Value::some(Value::list(list)) }))
        }
        _ => None,
    }
}

fn complaints(format: &str, text: &str) -> Vec<String> {
    // A prefix may end where a name may not, but has to begin with something else.
    let masked = || match text.strip_suffix('-') {
        Some(start) if !start.is_empty() => format!("{start}a"),
        _ => text.to_owned(),
    };
    let fits = |format: &str, why: &str| {
        if crate::crd::has_format(format, text) { Vec::new() } else { vec![why.to_owned()] }
    };
    match format {
        "dns1123Label" => names::dns_label(text),
        "dns1123Subdomain" => names::dns_subdomain(text),
        "dns1035Label" => names::dns_1035_label(text),
        "dns1123LabelPrefix" => names::dns_label(&masked()),
        "dns1123SubdomainPrefix" => names::dns_subdomain(&masked()),
        "dns1035LabelPrefix" => names::dns_1035_label(&masked()),
        "qualifiedName" => names::qualified_name(text),
        "labelValue" => names::label_value(text),
        "uri" => Url::of_request(text).err().into_iter().collect(),
        "uuid" => fits("uuid", "does not match the UUID format"),
        "byte" => fits("byte", "invalid base64"),
        "date" => fits("date", "invalid date"),
        _ => fits("datetime", "invalid datetime"),
    }
}
