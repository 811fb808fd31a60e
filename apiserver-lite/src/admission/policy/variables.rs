//! `variables` of a policy: each is evaluated when an expression first asks for it, and once for a request.

use std::cell::{Cell, RefCell};

use super::expression::{Expression, text};
use crate::cel::{Budget, Failure, Host, Value};

/// How high expressions and the variables that they use may be on top of each other: whoever evaluates them goes so
/// deep, and so deep are the values that they make.
const HIGHEST: usize = 500;

type Out<'a> = Result<Value<'a>, Failure>;

/// Variables in their order, and the values of those that were asked for.
pub struct Variables<'a> {
    all: &'a [(String, Expression)],
    /// By the place of the variable.
    found: RefCell<Vec<(usize, Found<'a>)>>,
    place: Cell<Place>,
}

#[derive(Clone)]
struct Found<'a> {
    value: Out<'a>,
    /// Of its expression on top of the highest variable that it uses.
    height: usize,
}

/// Where evaluation is.
#[derive(Clone, Copy)]
struct Place {
    /// How many variables can be seen: one sees those before it.
    seen: usize,
    /// The heights of all expressions that are being evaluated.
    above: usize,
    /// The highest variable that the innermost of them used so far.
    below: usize,
}

impl<'a> Variables<'a> {
    pub fn new(all: &'a [(String, Expression)]) -> Self {
        let place = Place { seen: all.len(), above: 0, below: 0 };
        Variables { all, found: RefCell::default(), place: Cell::new(place) }
    }

    /// Before an expression of some height is evaluated, which is none of a variable.
    pub fn begin(&self, height: usize) {
        self.place.set(Place { seen: self.all.len(), above: height, below: 0 });
    }

    /// The value of the last variable of a name that can be seen; `bound` and `host` are what its expression sees.
    pub fn value(
        &self,
        name: &str,
        bound: &[(&'static str, Value<'a>)],
        host: &dyn Host<'a>,
        budget: &mut Budget,
    ) -> Option<Out<'a>> {
        let place = self.place.get();
        let at = self.all.get(..place.seen)?.iter().rposition(|(known, _)| known == name)?;
        let known = self.found.borrow().iter().find(|(known, _)| *known == at).map(|(_, found)| found.clone());
        let found = match known {
            Some(found) => found,
            None => {
                let found = self.evaluate(at, place, bound, host, budget);
                self.place.set(place);
                if matches!(found.value, Err(Failure::OverBudget)) {
                    return Some(found.value);
                }
                self.found.borrow_mut().push((at, found.clone()));
                found
            }
        };
        self.place.set(Place { below: place.below.max(found.height), ..place });
        Some(found.value)
    }

    fn evaluate(
        &self,
        at: usize,
        place: Place,
        bound: &[(&'static str, Value<'a>)],
        host: &dyn Host<'a>,
        budget: &mut Budget,
    ) -> Found<'a> {
        let (name, expression) = &self.all[at];
        let failed =
            |why: &str| Found { value: Err(Failure::new(format!("composited variable {name:?} {why}"))), height: 0 };
        let program = match expression.program() {
            Ok(program) => program,
            Err(why) => return failed(&format!("fails to compile: {why}")),
        };
        let above = place.above + program.height();
        if above > HIGHEST {
            return failed(&format!("fails to evaluate: {}", too_high()));
        }
        self.place.set(Place { seen: at, above, below: 0 });
        let value = budget.within(|budget| program.eval_with(bound, host, budget));
        let height = program.height() + self.place.get().below;
        match value {
            Err(Failure::OverBudget) if budget.is_exhausted() => Found { value: Err(Failure::OverBudget), height },
            Err(failure) => failed(&format!("fails to evaluate: {}", text(failure))),
            Ok(_) if height > HIGHEST => failed(&format!("fails to evaluate: {}", too_high())),
            Ok(value) => Found { value: Ok(value), height },
        }
    }
}

fn too_high() -> String {
    format!("expressions of variables nest too deep: limit {HIGHEST}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::policy::Environment;
    use crate::cel::{Check, Decision, STACK};

    struct Alone<'a>(Variables<'a>);

    impl<'a> Host<'a> for Alone<'a> {
        fn variable(&self, name: &str, budget: &mut Budget) -> Option<Out<'a>> {
            self.0.value(name, &[], self, budget)
        }

        fn authorize(&self, _check: &Check, _verb: &str) -> Decision {
            Decision::default()
        }
    }

    /// What expressions are worth, one after the other, to which variables are known.
    fn worth(variables: &[(&str, String)], asked: &[&str]) -> Vec<String> {
        let mut environment = Environment { variables: Some(Vec::new()), ..Environment::default() };
        let all: Vec<(String, Expression)> =
            variables.iter().map(|(name, text)| ((*name).to_owned(), environment.variable(name, text))).collect();
        let asked: Vec<Expression> = asked.iter().map(|text| environment.compile(text, &[])).collect();
        let host = Alone(Variables::new(&all));
        let mut budget = Budget::new(10_000_000);
        let worth = asked.iter().map(|expression| {
            let program = expression.program().expect("a good expression");
            host.0.begin(program.height());
            match program.eval_with(&[], &host, &mut budget) {
                Ok(Value::Int(number)) => number.to_string(),
                Ok(value) => value.kind().to_owned(),
                Err(failure) => text(failure),
            }
        });
        worth.collect()
    }

    #[test]
    fn a_variable_sees_only_those_before_it() {
        let variables = [("a", "1"), ("b", "variables.a + 5"), ("a", "variables.a + 1"), ("c", "variables.a * 10")];
        let variables = variables.map(|(name, text)| (name, text.to_owned()));
        let asked = ["variables.c", "variables.a", "variables.b", "variables.c + variables.a"];
        assert_eq!(worth(&variables, &asked), ["20", "2", "6", "22"]);
    }

    #[test]
    fn variables_on_top_of_each_other_are_bounded() {
        // Neither evaluation nor the value may be too deep, so also not where all are asked for in their order.
        let last = 100;
        let names: Vec<String> = (0..=last).map(|index| format!("v{index}")).collect();
        for (before, after) in [("[", "]"), ("[1].map(x, ", ")"), ("dyn(", ")"), ("(1 + ", ")"), ("optional.of(", ")")]
        {
            let wrapped = |inside: &str| format!("{}{inside}{}", before.repeat(80), after.repeat(80));
            let inside = |index: usize| match index {
                0 => "1".to_owned(),
                _ if before == "(1 + " => format!("variables.v{}", index - 1),
                _ => format!("dyn(variables.v{})", index - 1),
            };
            let variables: Vec<(&str, String)> =
                names.iter().enumerate().map(|(index, name)| (name.as_str(), wrapped(&inside(index)))).collect();
            let in_order: Vec<String> = names.iter().map(|name| format!("variables.{name}")).collect();
            let in_order: Vec<&str> = in_order.iter().map(String::as_str).collect();
            let backwards: Vec<&str> = in_order.iter().rev().copied().collect();
            let high = wrapped(&wrapped("variables.v4"));
            let run = || (worth(&variables, &in_order), worth(&variables, &backwards), worth(&variables, &[&high]));
            let (first, second, third) = std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
                thread.expect("a thread").join().expect("no panic")
            });
            let refused = "expressions of variables nest too deep: limit 500";
            assert!(!first[3].contains("fails") && first[last].ends_with(refused), "{before}: {first:?}");
            assert!(second[0].ends_with(refused), "{before}: {second:?}");
            assert!(!first[4].contains("fails") && third[0].ends_with(refused), "{before}: {third:?}");
        }
    }
}
