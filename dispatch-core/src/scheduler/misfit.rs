//! Why no node can run a container. Pure.
//!
//! Input: what the container requires, and the kinds of nodes (or slots) that there are. Output: a
//! sentence for the user.

/// One resource that a container requires, of a node described by `N`.
#[derive(Debug)]
pub struct Requirement<N> {
    pub amount: u64,
    /// What a node has of it.
    pub of: fn(&N) -> u64,
    pub unit: &'static str,
    /// What gives it, with a verb.
    pub giver: &'static str,
}

/// Whether a node meets all requirements.
pub fn is_met<N>(requirements: &[Requirement<N>], node: &N) -> bool {
    requirements.iter().all(|one| one.is_met_by(node))
}

impl<N> Requirement<N> {
    fn is_met_by(&self, node: &N) -> bool {
        self.amount <= (self.of)(node)
    }
}

/// Names what exceeds every node, or what the nearest node has if each resource fits some node.
/// `place` tells where a node is, as in "the nearest, in partition a, has".
pub fn explain_misfit<N>(
    requirements: &[Requirement<N>],
    nodes: &[&N],
    place: impl Fn(&N) -> String,
) -> String {
    let largest = |one: &Requirement<N>| nodes.iter().map(|node| (one.of)(node)).max().unwrap_or(0);
    let beyond: Vec<String> = requirements
        .iter()
        .filter(|one| one.amount > largest(one))
        .map(|one| {
            let (amount, unit, giver) = (one.amount, one.unit, one.giver);
            format!("{amount} {unit}, but {giver} at most {}", largest(one))
        })
        .collect();
    if !beyond.is_empty() {
        return format!("it requests {}", beyond.join("; "));
    }
    let missed = |node: &&&N| {
        requirements
            .iter()
            .filter(|one| !one.is_met_by(node))
            .count()
    };
    let Some(nearest) = nodes.iter().min_by_key(missed) else {
        return "there are no nodes".to_owned();
    };
    let list = |of: &dyn Fn(&Requirement<N>) -> u64| {
        let each = requirements
            .iter()
            .map(|one| format!("{} {}", of(one), one.unit));
        each.collect::<Vec<_>>().join(", ")
    };
    format!(
        "no node has all that it requests ({}); the nearest{} has {}",
        list(&|one| one.amount),
        place(nearest),
        list(&|one| (one.of)(nearest)),
    )
}
