//! Options of sbatch that the admin must not set, because the dispatcher relies on its own. Input:
//! an argument. Output: why it is refused.

/// An option that is refused.
struct Reserved {
    name: &'static str,
    /// Length of the shortest abbreviation that sbatch accepts.
    min_length: usize,
    short: Option<char>,
    /// The only value that is accepted, if there is one.
    accepted: Option<&'static str>,
    why: &'static str,
}

const fn reserved(name: &'static str, min_length: usize, why: &'static str) -> Reserved {
    Reserved {
        name,
        min_length,
        short: None,
        accepted: None,
        why,
    }
}

/// See sbatch(1).
const RESERVED: [Reserved; 8] = [
    reserved("requeue", 3, "a new attempt is a new job"),
    reserved("nice", 2, "the dispatcher orders its jobs by it"),
    reserved("wrap", 2, "the job script is the dispatcher's"),
    reserved("comment", 3, "it says which attempt a job belongs to"),
    Reserved {
        short: Some('J'),
        accepted: Some("%U"),
        ..reserved("job-name", 1, "the dispatcher finds its jobs by it")
    },
    Reserved {
        short: Some('a'),
        ..reserved("array", 2, "one job runs one container")
    },
    Reserved {
        short: Some('W'),
        ..reserved("wait", 4, "sbatch must answer before the job has ended")
    },
    Reserved {
        short: Some('N'),
        accepted: Some("1"),
        ..reserved("nodes", 5, "a container runs on one node")
    },
];

/// Why this argument of sbatch is refused.
pub fn refusal(argument: &str) -> Option<&'static str> {
    let long = argument.strip_prefix("--");
    let (name, value) = match long {
        Some(long) => long.split_once('=').unwrap_or((long, "")),
        None => ("", ""),
    };
    let is_meant = |reserved: &&Reserved| match long {
        Some(_) => {
            name.len() >= reserved.min_length
                && reserved.name.starts_with(name)
                && reserved.accepted != Some(value)
        }
        None => reserved.short.is_some_and(|short| {
            let value = argument
                .strip_prefix('-')
                .and_then(|rest| rest.strip_prefix(short));
            value.is_some_and(|value| reserved.accepted != Some(value))
        }),
    };
    RESERVED.iter().find(is_meant).map(|reserved| reserved.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dispatcher_relies_on_is_refused() {
        #[rustfmt::skip]
        let rows = [
            ("--requeue", true), ("--req", true), ("--no-requeue", false), ("--reservation=x", false),
            ("--nice=0", true), ("--nice", true), ("--ni=5", true),
            ("--array=1-3", true), ("-a1-3", true), ("-A", false), ("--account=a", false),
            ("--wait", true), ("-W", true), ("--wait-all-nodes=1", false),
            ("--wrap=true", true),
            ("--nodes=2", true), ("--nodes=1-2", true), ("-N2", true), ("--nodes=1", false), ("-N1", false),
            ("--nodelist=n1", false), ("--ntasks=4", false), ("--mem=%M", false),
            ("--job-name=%U", false), ("-J%U", false), ("--job-name=a-%U", true), ("--j=x", true),
            ("-Jx", true), ("--comment=x", true), ("--com=x", true), ("--container=x", false),
            ("", false), ("-", false), ("--", false),
        ];
        for (argument, expected) in rows {
            assert_eq!(refusal(argument).is_some(), expected, "{argument}");
        }
    }
}
