//! Types of an expression's parts: what fits is accepted, what does not is told with its place.

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{Expr, Fold, Kind, Macro};
use super::format;
use super::issue::{self, Issue};
use super::overloads::{self, Overload};
use super::regex;
use super::types::{MOST_PARTS, Shown, Type};

pub struct Checked {
    pub ty: Type,
    /// Of every part, as long as the expression stays where it is.
    pub types: Types,
    pub issues: Vec<Issue>,
    pub names: Vec<String>,
    /// Regular expressions that are written in it.
    pub patterns: Vec<String>,
}

/// Types by the places of expressions in memory.
#[derive(Default)]
pub struct Types(HashMap<usize, Type>);

fn place(expr: &Expr) -> usize {
    std::ptr::from_ref(expr).addr()
}

impl Types {
    pub fn of(&self, expr: &Expr) -> &Type {
        self.0.get(&place(expr)).unwrap_or(&Type::Dyn)
    }
}

pub fn check(expr: &Expr, variables: super::Variables<'_>) -> Checked {
    let scope = variables.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())).collect();
    let mut checker = Checker {
        scope,
        outer: variables.len(),
        issues: Vec::new(),
        names: Vec::new(),
        patterns: Vec::new(),
        invalid: Vec::new(),
        formats: false,
        types: Types::default(),
    };
    let ty = checker.ty(expr);
    // Values that cannot be are told only where everything else fits.
    let issues = if checker.issues.is_empty() { checker.invalid } else { checker.issues };
    Checked { ty: ty.settled(), types: checker.types, issues, names: checker.names, patterns: checker.patterns }
}

struct Checker {
    scope: Vec<(String, Type)>,
    /// How many of these were given.
    outer: usize,
    issues: Vec<Issue>,
    names: Vec<String>,
    patterns: Vec<String>,
    /// Literals that cannot be what is made of them.
    invalid: Vec<Issue>,
    /// Within what is formatted, which may be of any types.
    formats: bool,
    types: Types,
}

/// Types of the members of a literal.
#[derive(Default)]
struct Members {
    first: Option<Type>,
    joined: Option<Type>,
    /// That was told.
    differ: bool,
}

/// Names of types, which stand for themselves.
const KINDS: [&str; 13] = [
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
    "google.protobuf.Timestamp",
    "google.protobuf.Duration",
];

impl Checker {
    fn complain(&mut self, at: usize, text: String) -> Type {
        issue::keep(&mut self.issues, Issue { at, text });
        Type::Dyn
    }

    fn ty(&mut self, expr: &Expr) -> Type {
        let ty = self.found(expr);
        let ty = self.bounded(expr.at, ty);
        self.types.0.insert(place(expr), ty.clone().settled());
        ty
    }

    /// Types share their parts, and with few steps one has more of them than can be looked at.
    fn bounded(&mut self, at: usize, ty: Type) -> Type {
        if ty.is_large() { self.complain(at, format!("type has too many parts: limit {MOST_PARTS}")) } else { ty }
    }

    fn found(&mut self, expr: &Expr) -> Type {
        let at = expr.at;
        match &expr.kind {
            Kind::Null => Type::Null,
            Kind::Bool(_) => Type::Bool,
            Kind::Int(_) => Type::Int,
            Kind::Uint(_) => Type::Uint,
            Kind::Double(_) => Type::Double,
            Kind::Text(_) => Type::Text,
            Kind::Bytes(_) => Type::Bytes,
            Kind::Name(name) => self.name(at, name),
            Kind::Select { operand, field, test, optional } => self.select(at, operand, field, *test, *optional),
            Kind::Index { operand, index, optional } => self.index(at, operand, index, *optional),
            Kind::Call { name, target, args } => self.call(at, name, target.as_deref(), args),
            Kind::List(items) => {
                let mut members = Members::default();
                for (expr, optional) in items {
                    let ty = self.ty(expr);
                    self.member(expr.at, &mut members, inside(ty, *optional));
                }
                Type::list(members.joined.unwrap_or(Type::Free))
            }
            Kind::Map(entries) => {
                let (mut keys, mut values) = (Members::default(), Members::default());
                for (key, value, optional) in entries {
                    let ty = self.ty(key);
                    self.member(key.at, &mut keys, ty);
                    let ty = self.ty(value);
                    self.member(value.at, &mut values, inside(ty, *optional));
                }
                let [key, value] = [keys, values].map(|all| all.joined.unwrap_or(Type::Free));
                Type::Map(key.into(), value.into())
            }
            Kind::Message { name, fields } => self.message(at, name, fields),
            Kind::And(a, b) | Kind::Or(a, b) => {
                let (left, right) = (self.ty(a), self.ty(b));
                for (side, ty) in [(a, left), (b, right)] {
                    if !fits(&ty, &Type::Bool) {
                        self.complain(side.at, format!("expected type 'bool' but found '{ty}'"));
                    }
                }
                Type::Bool
            }
            Kind::Choice(condition, yes, no) => {
                let condition = self.ty(condition);
                let (yes, no) = (self.ty(yes), self.ty(no));
                let joined = join(&yes, &no);
                match joined {
                    Some(ty) if fits(&condition, &Type::Bool) => ty,
                    _ => self.complain(at, no_overload("_?_:_", false, &[condition, yes, no])),
                }
            }
            Kind::Fold(fold) => self.fold(fold),
            Kind::OptionalMap { operand, name, body, flat } => {
                let inner = match self.ty(operand) {
                    Type::Optional(inner) => (*inner).clone(),
                    Type::Dyn | Type::Free => Type::Dyn,
                    other => return self.complain(at, no_overload("optMap", true, &[other, Type::Dyn])),
                };
                let body = self.within(&[(name, inner)], |c| c.ty(body));
                if *flat { body } else { Type::optional(body) }
            }
        }
    }

    fn within<T>(&mut self, names: &[(&String, Type)], inner: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.scope.len();
        self.scope.extend(names.iter().map(|(name, ty)| ((*name).clone(), ty.clone())));
        let out = inner(self);
        self.scope.truncate(length);
        out
    }

    fn lookup(&mut self, name: &str) -> Option<Type> {
        let at = self.scope.iter().rposition(|(known, _)| known == name)?;
        if at < self.outer && !self.names.iter().any(|n| n == name) {
            self.names.push(name.to_owned());
        }
        Some(self.scope[at].1.clone())
    }

    fn name(&mut self, at: usize, name: &str) -> Type {
        match self.lookup(name) {
            Some(ty) => ty,
            None if KINDS.contains(&name) => Type::Kind,
            None => self.complain(at, format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    /// A literal of one of the types for changes; known where `JSONPatch` is declared.
    fn message(&mut self, at: usize, name: &str, fields: &[(usize, String, Expr, bool)]) -> Type {
        let patches = self.scope.iter().any(|(known, _)| known == "JSONPatch");
        let object = name == "Object" || name.starts_with("Object.");
        if !patches || !(object || name == "JSONPatch") {
            return self.complain(at, format!("undeclared reference to '{name}' (in container '')"));
        }
        for (colon, field, value, optional) in fields {
            let mut ty = self.ty(value);
            if *optional && let Type::Optional(inner) = &ty {
                ty = (**inner).clone();
            }
            let wanted = match field.as_str() {
                _ if object => Type::Dyn,
                "op" | "path" | "from" => Type::Text,
                "value" => Type::Dyn,
                _ => {
                    self.complain(*colon, format!("undefined field '{field}'"));
                    continue;
                }
            };
            if !fits(&ty, &wanted) {
                let text = format!("expected type of field '{field}' is '{wanted}' but provided type is '{ty}'");
                self.complain(*colon, text);
            }
        }
        Type::made(name)
    }

    fn select(&mut self, at: usize, operand: &Expr, field: &str, test: bool, optional: bool) -> Type {
        // Some variables have a dot in their name.
        if let Kind::Name(space) = &operand.kind
            && !test
            && let Some(ty) = self.lookup(&format!("{space}.{field}"))
        {
            return ty;
        }
        let mut ty = self.ty(operand);
        let mut wrapped = optional;
        if let Type::Optional(inner) = &ty {
            ty = (**inner).clone();
            wrapped = true;
        }
        let found = match &ty {
            Type::Object(object) => match object.fields.get(field) {
                Some(field) => field.ty.clone(),
                None => return self.complain(at, format!("undefined field '{field}'")),
            },
            Type::Map(_, value) => (**value).clone(),
            Type::Dyn | Type::Free | Type::Made(_) => Type::Dyn,
            other => {
                let text = format!("type '{other}' does not support field selection");
                return self.complain(at, text);
            }
        };
        match (test, wrapped) {
            (true, _) => Type::Bool,
            (false, true) => Type::optional(found),
            (false, false) => found,
        }
    }

    fn index(&mut self, at: usize, operand: &Expr, index: &Expr, optional: bool) -> Type {
        let (whole, key) = (self.ty(operand), self.ty(index));
        let mut ty = whole.clone();
        let mut wrapped = optional;
        if let Type::Optional(inner) = &ty {
            ty = (**inner).clone();
            wrapped = true;
        }
        let found = match &ty {
            Type::List(item) if fits(&key, &Type::Int) => (**item).clone(),
            Type::Map(wanted, value) if fits(&key, wanted) => (**value).clone(),
            Type::Dyn | Type::Free => Type::Dyn,
            _ => return self.complain(at, no_overload("_[_]", false, &[whole, key])),
        };
        if wrapped { Type::optional(found) } else { found }
    }

    /// One more member of a list or map literal. All have the same type, but in what is formatted.
    fn member(&mut self, at: usize, members: &mut Members, ty: Type) {
        let first = members.first.get_or_insert_with(|| ty.clone());
        if !members.differ && !self.formats && !is_alike(first, &ty) {
            members.differ = true;
            let text = format!("expected type '{first}' but found '{ty}'");
            issue::keep(&mut self.invalid, Issue { at, text });
        }
        members.joined = Some(match &members.joined {
            None => ty,
            Some(before) => join(before, &ty).unwrap_or(Type::Dyn),
        });
    }

    fn fold(&mut self, fold: &Fold) -> Type {
        let range = self.ty(&fold.range);
        let (key, item) = match &range {
            Type::List(item) => (Type::Int, (**item).clone()),
            // Over a map, one variable stands for the keys.
            Type::Map(key, value) if fold.second.is_some() => ((**key).clone(), (**value).clone()),
            Type::Map(key, _) => (Type::Dyn, (**key).clone()),
            Type::Dyn | Type::Free => (Type::Dyn, Type::Dyn),
            other => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return self.complain(fold.range.at, text);
            }
        };
        let names = match &fold.second {
            Some(second) => vec![(&fold.first, key.clone()), (second, item.clone())],
            None => vec![(&fold.first, item.clone())],
        };
        let body = self.within(&names, |checker| {
            if let Some(filter) = &fold.filter {
                checker.condition(filter);
            }
            match fold.macro_kind {
                Macro::Map | Macro::TransformMap | Macro::TransformMapEntry | Macro::SortBy => checker.ty(&fold.body),
                _ => {
                    checker.condition(&fold.body);
                    Type::Bool
                }
            }
        });
        match fold.macro_kind {
            Macro::All | Macro::Exists | Macro::ExistsOne => Type::Bool,
            Macro::Map => Type::list(body),
            Macro::Filter => Type::list(item),
            Macro::SortBy if matches!(range, Type::Map(..)) => {
                let text = format!("found no matching overload for '@sortByAssociatedKeys' applied to '{range}'");
                self.complain(fold.range.at, text)
            }
            Macro::SortBy => Type::list(item),
            Macro::TransformMapEntry => match body {
                Type::Map(..) => body,
                Type::Dyn | Type::Free => Type::map(Type::Dyn),
                other => {
                    let text = format!(
                        "found no matching overload for 'cel.@mapInsert' applied to '(map(dyn, dyn), {other})'"
                    );
                    self.complain(fold.body.at, text)
                }
            },
            Macro::TransformMap => Type::Map(key.into(), body.into()),
        }
    }

    fn condition(&mut self, expr: &Expr) {
        let ty = self.ty(expr);
        if !fits(&ty, &Type::Bool) {
            self.complain(expr.at, format!("expected type 'bool' but found '{ty}'"));
        }
    }

    fn call(&mut self, at: usize, name: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        if let Some(Expr { kind: Kind::Name(space), .. }) = target
            && (overloads::SPACES.contains(&&**space) || space == "ip")
            && self.scope.iter().all(|(known, _)| known != space)
        {
            let whole = format!("{space}.{name}");
            if !overloads::of(&whole).is_empty() {
                return self.resolve(at, &whole, None, args);
            }
        }
        self.resolve(at, name, target, args)
    }

    /// Looks at texts that stand where a function takes a pattern, a duration or a time.
    fn written(&mut self, name: &str, target: Option<&Expr>, args: &[Expr]) {
        let text = |expr: Option<&Expr>| match expr.map(|expr| &expr.kind) {
            Some(Kind::Text(text)) => Some(text.clone()),
            _ => None,
        };
        if regex::takes_pattern(name) {
            self.patterns.extend(text(args.get(usize::from(target.is_none()))));
        }
        // What is called on a value has its pattern first; upstream looks at the first alone.
        let (Some(first), Some(said)) = (args.first(), text(args.first())) else { return };
        let valid = match name {
            "matches" => crate::crd::check_pattern(&said).is_ok(),
            "duration" => proto::duration::parse(&said).is_ok(),
            "timestamp" => said.len() > 10 && super::value::timestamp(&said).is_some(),
            _ => true,
        };
        if !valid {
            self.invalid.push(Issue { at: first.at, text: format!("invalid {name} argument") });
        }
    }

    fn resolve(&mut self, at: usize, name: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        self.written(name, target, args);
        let formats = self.formats;
        self.formats |= name == "format";
        let target_type = target.map(|t| self.ty(t));
        let of_args: Vec<Type> = args.iter().map(|arg| self.ty(arg)).collect();
        self.formats = formats;
        let types: Vec<Type> = target_type.into_iter().chain(of_args).collect();
        if let (Some(Kind::Text(text)), "format", [Expr { kind: Kind::List(items), .. }]) =
            (target.map(|target| &target.kind), name, args)
        {
            self.invalid.extend(format::complaint(at, text, items, &self.types));
        }
        let all = overloads::of(name);
        if all.is_empty() {
            return self.complain(at, format!("undeclared reference to '{name}' (in container '')"));
        }
        let member = target.is_some();
        let mut results = all.iter().filter(|o| o.member == member).filter_map(|overload| apply(overload, &types));
        let Some(first) = results.next() else { return self.complain(at, no_overload(name, member, &types)) };
        // Where types are open, several may fit, and the value decides.
        if results.all(|r| r == first) { first } else { Type::Dyn }
    }
}

fn no_overload(name: &str, member: bool, types: &[Type]) -> String {
    let applied = match types.split_first() {
        Some((target, args)) if member => format!("{target}.({})", Shown(args)),
        _ => format!("({})", Shown(types)),
    };
    format!("found no matching overload for '{name}' applied to '{applied}'")
}

/// The result of an overload for arguments of some types; None when they do not fit.
fn apply(overload: &Overload, types: &[Type]) -> Option<Type> {
    if overload.args.len() != types.len() {
        return None;
    }
    let mut bound: Vec<(char, Type)> = Vec::new();
    for (wanted, given) in overload.args.iter().zip(types) {
        if !unify(wanted, given, &mut bound) {
            return None;
        }
    }
    Some(substitute(&overload.result, &bound))
}

fn unify(wanted: &Type, given: &Type, bound: &mut Vec<(char, Type)>) -> bool {
    match (wanted, given) {
        (Type::Parameter(name), given) => match bound.iter_mut().find(|(known, _)| known == name) {
            None => {
                bound.push((*name, given.clone()));
                true
            }
            Some((_, known)) => match join(known, given) {
                Some(joined) => {
                    *known = joined;
                    true
                }
                None => false,
            },
        },
        (Type::Dyn | Type::Free, _) | (_, Type::Dyn | Type::Free) => true,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => unify(a, b, bound),
        (Type::Map(a, b), Type::Map(c, d)) => unify(a, c, bound) && unify(b, d, bound),
        (a, b) => fits(b, a),
    }
}

fn substitute(ty: &Type, bound: &[(char, Type)]) -> Type {
    match ty {
        Type::Parameter(name) => bound.iter().find(|(known, _)| known == name).map_or(Type::Free, |(_, ty)| ty.clone()),
        Type::List(inner) => Type::list(substitute(inner, bound)),
        Type::Optional(inner) => Type::optional(substitute(inner, bound)),
        Type::Map(key, value) => Type::Map(substitute(key, bound).into(), substitute(value, bound).into()),
        other => other.clone(),
    }
}

/// Whether a value of a type may stand where another is wanted.
fn fits(given: &Type, wanted: &Type) -> bool {
    match (given, wanted) {
        (Type::Dyn | Type::Free, _) | (_, Type::Dyn | Type::Free | Type::Parameter(_)) => true,
        // Null stands for values that have a place for it.
        (
            Type::Null,
            Type::Object(_) | Type::Timestamp | Type::Duration | Type::Optional(_) | Type::Opaque(_) | Type::Made(_),
        ) => true,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => fits(a, b),
        (Type::Map(a, b), Type::Map(c, d)) => fits(a, c) && fits(b, d),
        (a, b) => a == b,
    }
}

/// The type of what is taken where it is there.
fn inside(ty: Type, optional: bool) -> Type {
    match ty {
        Type::Optional(inner) if optional => (*inner).clone(),
        ty => ty,
    }
}

/// Whether two types are the same, but for what is free in them.
fn is_alike(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Free, _) | (_, Type::Free) => true,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => is_alike(a, b),
        (Type::Map(a, b), Type::Map(c, d)) => is_alike(a, c) && is_alike(b, d),
        (a, b) => a == b,
    }
}

/// The type that both have; None when they have nothing in common.
fn join(a: &Type, b: &Type) -> Option<Type> {
    match (a, b) {
        (Type::Free, other) | (other, Type::Free) => Some(other.clone()),
        (Type::Dyn, _) | (_, Type::Dyn) => Some(Type::Dyn),
        (Type::List(x), Type::List(y)) => join_parts(x, y).map(Type::List),
        (Type::Optional(x), Type::Optional(y)) => join_parts(x, y).map(Type::Optional),
        (Type::Map(k, v), Type::Map(l, w)) => Some(Type::Map(join_parts(k, l)?, join_parts(v, w)?)),
        (a, b) if a == b => Some(a.clone()),
        (a, b) if fits(a, b) => Some(b.clone()),
        (a, b) if fits(b, a) => Some(a.clone()),
        _ => None,
    }
}

/// The same of parts; those that both share are not looked at.
fn join_parts(a: &Arc<Type>, b: &Arc<Type>) -> Option<Arc<Type>> {
    if Arc::ptr_eq(a, b) { Some(a.clone()) } else { join(a, b).map(Arc::new) }
}
