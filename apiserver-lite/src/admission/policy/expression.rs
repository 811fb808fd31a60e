//! Expressions of policies and webhooks: what they may name, what they have to make, and their evaluation.
//!
//! Follows `apiserver/pkg/admission/plugin/cel`. What `variables` are worth is told by [`Variables`].

use std::sync::LazyLock;

use serde_json::Value as Json;

use super::super::attributes::Attributes;
use super::variables::Variables;
use crate::auth::Attributes as Asking;
use crate::cel::{self, Asked, Budget, Check, Decision, Failure, Program, Type, Value};
use crate::request::{RequestInfo, User};
use crate::resource::Resource;
use crate::server::ApiServer;

/// Steps that the expressions of a policy may take together.
pub const BUDGET: u64 = 10_000_000;
/// Steps that the match conditions of one object may take together.
pub const CONDITIONS_BUDGET: u64 = 2_500_000;

/// An expression with what came of reading it.
#[derive(Debug)]
pub struct Expression {
    pub text: String,
    program: Result<Program, String>,
}

/// Names that expressions may use.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    pub params: bool,
    pub authorizer: bool,
    /// `Object` and `JSONPatch` can be made.
    pub patches: bool,
    /// `variables` and what is known of them; None where there are none.
    pub variables: Option<Vec<(String, Type)>>,
    /// Types of `object` and of `params` where they are known, which they are when types are checked for a status.
    pub typed: (Option<Type>, Option<Type>),
}

impl Environment {
    fn declared(&self) -> Vec<(&'static str, Type)> {
        let mut out = vec![
            ("object", self.typed.0.clone().unwrap_or(Type::Dyn)),
            ("oldObject", self.typed.0.clone().unwrap_or(Type::Dyn)),
            ("namespaceObject", NAMESPACE.clone()),
            ("request", REQUEST.clone()),
        ];
        if self.params {
            out.push(("params", self.typed.1.clone().unwrap_or(Type::Dyn)));
        }
        if self.authorizer {
            out.push(("authorizer", Type::Opaque(cel::AUTHORIZER)));
            out.push(("authorizer.requestResource", Type::Opaque(cel::RESOURCE_CHECK)));
        }
        if self.patches {
            // A type that can be made, no value.
            out.push(("JSONPatch", Type::Kind));
        }
        if let Some(variables) = &self.variables {
            let fields: Vec<(&str, Type)> = variables.iter().map(|(name, ty)| (name.as_str(), ty.clone())).collect();
            out.push(("variables", Type::object("kubernetes.variables", &fields)));
        }
        out
    }

    /// Reads an expression that has to make a value of one of some types; of any, if there are none.
    pub fn compile(&self, text: &str, wanted: &[Type]) -> Expression {
        let program = cel::compile(text, &self.declared()).map_err(|why| format!("compilation failed: {why}"));
        let program = program.and_then(|program| {
            if wanted.is_empty() || wanted.contains(&program.output) {
                return Ok(program);
            }
            let names: Vec<String> = wanted.iter().map(Type::runtime_name).collect();
            let got = program.output.runtime_name();
            Err(match names.as_slice() {
                [name] => format!("must evaluate to {name} but got {got}"),
                names => format!("must evaluate to one of [{}] but got {got}", names.join(" ")),
            })
        });
        Expression { text: text.into(), program }
    }

    /// What the checker has against an expression whose value may be of any type.
    pub fn issues(&self, text: &str) -> Option<String> {
        cel::compile(text, &self.declared()).err()
    }

    /// Takes in a variable, which later expressions may use.
    pub fn variable(&mut self, name: &str, text: &str) -> Expression {
        let expression = self.compile(text, &[]);
        let ty = expression.program.as_ref().map_or(Type::Dyn, |program| program.output.clone());
        let variables = self.variables.get_or_insert_default();
        variables.retain(|(known, _)| known != name);
        variables.push((name.to_owned(), ty));
        expression
    }
}

impl Expression {
    /// What is wrong with it.
    pub fn complaint(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// # Errors
    /// What is wrong with it.
    pub(super) fn program(&self) -> Result<&Program, &str> {
        self.program.as_ref().map_err(String::as_str)
    }

    pub fn uses(&self, name: &str) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses(name))
    }
}

static REQUEST: LazyLock<Type> = LazyLock::new(|| {
    let text = Type::Text;
    let kind = Type::object(
        "kubernetes.GroupVersionKind",
        &[("group", text.clone()), ("version", text.clone()), ("kind", text.clone())],
    );
    let resource = Type::object(
        "kubernetes.GroupVersionResource",
        &[("group", text.clone()), ("version", text.clone()), ("resource", text.clone())],
    );
    let user = Type::object(
        "kubernetes.UserInfo",
        &[
            ("username", text.clone()),
            ("uid", text.clone()),
            ("groups", Type::list(text.clone())),
            ("extra", Type::map(Type::list(text.clone()))),
        ],
    );
    Type::object(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text.clone()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text.clone()),
            ("name", text.clone()),
            ("namespace", text.clone()),
            ("operation", text),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
});

static NAMESPACE: LazyLock<Type> = LazyLock::new(|| {
    let text = Type::Text;
    let condition = Type::object(
        "kubernetes.NamespaceCondition",
        &[
            ("status", text.clone()),
            ("type", text.clone()),
            ("lastTransitionTime", Type::Timestamp),
            ("message", text.clone()),
            ("reason", text.clone()),
        ],
    );
    let metadata = Type::object(
        "kubernetes.NamespaceMetadata",
        &[
            ("name", text.clone()),
            ("generateName", text.clone()),
            ("namespace", text.clone()),
            ("labels", Type::map(text.clone())),
            ("annotations", Type::map(text.clone())),
            ("UID", text.clone()),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", text.clone()),
            ("finalizers", Type::list(text.clone())),
        ],
    );
    let spec = Type::object("kubernetes.NamespaceSpec", &[("finalizers", Type::list(text.clone()))]);
    let status = Type::object("kubernetes.NamespaceStatus", &[("conditions", Type::list(condition)), ("phase", text)]);
    Type::object("kubernetes.Namespace", &[("metadata", metadata), ("spec", spec), ("status", status)])
});

/// Everything that the expressions about one object see.
pub struct Facts<'a> {
    server: &'a ApiServer,
    user: &'a User,
    bound: Vec<(&'static str, Value<'a>)>,
    variables: Variables<'a>,
}

/// What expressions see, as trees that outlive them.
#[derive(Default)]
pub struct Seen<'a> {
    pub object: Option<&'a Json>,
    pub old: Option<&'a Json>,
    pub params: Option<&'a Json>,
    pub request: Option<&'a Json>,
    pub namespace: Option<&'a Json>,
}

impl<'a> Facts<'a> {
    pub fn new(
        attributes: &Attributes<'a>,
        matched: &Resource,
        variables: &'a [(String, Expression)],
        seen: &Seen<'a>,
    ) -> Self {
        let any = |value: Option<&'a Json>| value.map_or(Value::Null, |value| Value::of(value, &Type::Dyn));
        let typed = |value: Option<&'a Json>, ty: &'static LazyLock<Type>| {
            value.map_or(Value::Null, |value| Value::of(value, ty))
        };
        let call = attributes.call;
        let asked = Asked::Resource {
            group: matched.group.to_string(),
            resource: matched.plural.to_string(),
            subresource: call.subresource.into(),
            namespace: attributes.namespace.into(),
            name: call.name.into(),
            field_selector: String::new(),
            label_selector: String::new(),
        };
        let check = |asked: Asked| Value::Check(Check { account: None, asked }.into());
        let bound = vec![
            ("object", any(seen.object)),
            ("oldObject", any(seen.old)),
            ("params", any(seen.params)),
            ("request", typed(seen.request, &REQUEST)),
            ("namespaceObject", typed(seen.namespace, &NAMESPACE)),
            ("authorizer", check(Asked::Nothing)),
            ("authorizer.requestResource", check(asked)),
        ];
        Facts { server: call.server, user: call.user, bound, variables: Variables::new(variables) }
    }

    /// # Errors
    /// What is wrong with the expression or its evaluation, or that the whole budget is used up.
    pub fn evaluate(&self, expression: &'a Expression, budget: &mut Budget) -> Result<Value<'a>, Wrong> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(why) => return Err(Wrong::Expression(format!("compilation error: {why}"))),
        };
        self.variables.begin(program.height());
        program.eval_with(&self.bound, self, budget).map_err(|failure| match failure {
            Failure::OverBudget if budget.is_exhausted() => Wrong::Budget,
            failure => {
                Wrong::Expression(format!("expression '{}' resulted in error: {}", expression.text, text(failure)))
            }
        })
    }
}

pub(super) fn text(failure: Failure) -> String {
    match failure {
        Failure::Error(text) => text,
        Failure::OverBudget => "operation cancelled: actual cost limit exceeded".into(),
    }
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq)]
pub enum Wrong {
    Expression(String),
    /// Nothing is evaluated any more.
    Budget,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wrong::Expression(why) => f.write_str(why),
            Wrong::Budget => f.write_str(
                "validation failed due to running out of cost budget, no further validation rules will be run",
            ),
        }
    }
}

impl<'a> cel::Host<'a> for Facts<'a> {
    fn variable(&self, name: &str, budget: &mut Budget) -> Option<Result<Value<'a>, Failure>> {
        self.variables.value(name, &self.bound, self, budget)
    }

    fn authorize(&self, check: &Check, verb: &str) -> Decision {
        let account = check.account.as_ref().map(|(namespace, name)| User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")],
            ..User::default()
        });
        let user = account.as_ref().unwrap_or(self.user);
        if user.name.is_empty() {
            return Decision { allowed: true, ..Decision::default() };
        }
        let mut info = RequestInfo { verb: verb.into(), ..RequestInfo::default() };
        match &check.asked {
            Asked::Path(path) => info.path.clone_from(path),
            Asked::Resource { group, resource, subresource, namespace, name, field_selector, label_selector } => {
                info.is_resource = true;
                info.version = "*".into();
                info.group.clone_from(group);
                info.resource.clone_from(resource);
                info.subresource.clone_from(subresource);
                info.namespace.clone_from(namespace);
                info.name.clone_from(name);
                info.field_selector.clone_from(field_selector);
                info.label_selector.clone_from(label_selector);
            }
            Asked::Nothing | Asked::Group(_) => {}
        }
        let decision = self.server.authorizer.decide(&Asking { user, info: &info });
        Decision { allowed: decision.allowed, reason: decision.reason, error: decision.error }
    }
}

/// Conditions that all have to hold before a policy or webhook is asked.
#[derive(Debug, Default)]
pub struct Conditions(pub Vec<Expression>);

impl Conditions {
    pub fn compile(list: &Json, environment: &Environment) -> Self {
        let expressions =
            list.as_array().into_iter().flatten().map(|condition| {
                environment.compile(condition["expression"].as_str().unwrap_or_default(), &[Type::Bool])
            });
        Conditions(expressions.collect())
    }

    /// Whether all hold. What cannot be evaluated counts as a failure, unless another one does not hold.
    ///
    /// # Errors
    /// What cannot be evaluated, when failures do not count as `false`.
    pub fn hold<'a>(&'a self, facts: &Facts<'a>, fail: bool) -> Result<bool, String> {
        let mut budget = Budget::new(CONDITIONS_BUDGET);
        let mut failures: Vec<String> = Vec::new();
        for condition in &self.0 {
            match facts.evaluate(condition, &mut budget) {
                Ok(Value::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(Wrong::Budget) => {
                    return if fail { Err(Wrong::Budget.to_string()) } else { Ok(false) };
                }
                Err(Wrong::Expression(why)) if !failures.contains(&why) => failures.push(why),
                Err(_) => {}
            }
        }
        match failures.as_slice() {
            [] => Ok(true),
            _ if !fail => Ok(false),
            [one] => Err(one.clone()),
            all => Err(format!("[{}]", all.join(", "))),
        }
    }

    pub fn use_name(&self, name: &str) -> bool {
        self.0.iter().any(|condition| condition.uses(name))
    }
}
