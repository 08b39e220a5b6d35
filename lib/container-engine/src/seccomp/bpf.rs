//! Compiles a profile to programs for the kernel.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompOperator};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use syscalls::Sysno;

/// Number of instructions at the beginning of a program, which kill a process of another
/// architecture.
const ARCHITECTURE_CHECK: usize = 3;

/// By number; no rules mean always.
type Calls = BTreeMap<i64, Vec<SeccompRule>>;

/// Programs to install in this order; the kernel applies the strictest answer. System calls of
/// another architecture, such as i386 on x86_64, kill the process.
pub fn compile(profile: &LinuxSeccomp) -> Result<Vec<BpfProgram>, String> {
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut exceptions = Calls::new();
    let mut others: Vec<(SeccompAction, Calls)> = Vec::new();
    for entry in profile.syscalls().iter().flatten() {
        let action = action(entry.action(), entry.errno_ret())?;
        if action == default {
            continue;
        }
        let rule = rule(entry.args().as_deref().unwrap_or_default())?;
        let numbers = entry
            .names()
            .iter()
            .filter_map(|name| name.parse::<Sysno>().ok());
        for number in numbers.map(|call| i64::from(call.id())) {
            add(&mut exceptions, number, rule.as_ref());
            if action == SeccompAction::Allow {
                continue;
            }
            let calls = match others.iter_mut().find(|(other, _)| *other == action) {
                Some((_, calls)) => calls,
                None => &mut others.push_mut((action.clone(), Calls::new())).1,
            };
            add(calls, number, rule.as_ref());
        }
    }
    // The first lets pass all that is not the default's, and the others decide on it.
    let mut programs = Vec::new();
    if default != SeccompAction::Allow {
        programs.push(program(exceptions, SeccompAction::Allow, default)?);
    }
    for (action, calls) in others {
        programs.push(program(calls, action, SeccompAction::Allow)?);
    }
    Ok(programs)
}

fn add(calls: &mut Calls, number: i64, rule: Option<&SeccompRule>) {
    match (calls.entry(number), rule) {
        (Entry::Vacant(place), rule) => {
            place.insert(rule.into_iter().cloned().collect());
        }
        (Entry::Occupied(mut place), Some(rule)) if !place.get().is_empty() => {
            place.get_mut().push(rule.clone());
        }
        (Entry::Occupied(mut place), _) => place.get_mut().clear(),
    }
}

fn program(
    calls: Calls,
    matched: SeccompAction,
    otherwise: SeccompAction,
) -> Result<BpfProgram, String> {
    let machine = TargetArch::try_from(std::env::consts::ARCH).map_err(|e| e.to_string())?;
    let (always, conditional): (Calls, Calls) =
        calls.into_iter().partition(|(_, rules)| rules.is_empty());
    let mut program = SeccompFilter::new(conditional, otherwise, matched.clone(), machine)
        .and_then(BpfProgram::try_from)
        .map_err(|error| error.to_string())?;
    program.splice(
        ARCHITECTURE_CHECK..ARCHITECTURE_CHECK,
        in_ranges(always.into_keys(), &matched),
    );
    Ok(program)
}

/// Instructions that match numbers, by ranges. The kernel tries every number when it installs a
/// program, which takes a millisecond where each number has a comparison of its own.
fn in_ranges(
    numbers: impl Iterator<Item = i64>,
    matched: &SeccompAction,
) -> Vec<seccompiler::sock_filter> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers.filter_map(|number| u32::try_from(number).ok()) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let instruction = |code: u32, jt, jf, k| seccompiler::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load_number = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let jump = libc::BPF_JMP | libc::BPF_K;
    let comparisons = ranges.into_iter().flat_map(|(first, last)| {
        [
            instruction(jump | libc::BPF_JGE, 0, 2, first),
            instruction(jump | libc::BPF_JGT, 1, 0, last),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, matched.clone().into()),
        ]
    });
    std::iter::once(load_number).chain(comparisons).collect()
}

fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Result<SeccompAction, String> {
    Ok(match action {
        LinuxSeccompAction::ScmpActAllow => SeccompAction::Allow,
        LinuxSeccompAction::ScmpActErrno => {
            SeccompAction::Errno(errno.unwrap_or(libc::EPERM as u32))
        }
        LinuxSeccompAction::ScmpActLog => SeccompAction::Log,
        LinuxSeccompAction::ScmpActTrap => SeccompAction::Trap,
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => {
            SeccompAction::KillThread
        }
        LinuxSeccompAction::ScmpActKillProcess => SeccompAction::KillProcess,
        LinuxSeccompAction::ScmpActNotify | LinuxSeccompAction::ScmpActTrace => {
            return Err(format!(
                "action {action} needs another program, and there is none"
            ));
        }
    })
}

/// All comparisons of one entry. `None` without any.
fn rule(arguments: &[LinuxSeccompArg]) -> Result<Option<SeccompRule>, String> {
    if arguments.is_empty() {
        return Ok(None);
    }
    let conditions = arguments.iter().map(|argument| {
        let index = u8::try_from(argument.index()).unwrap_or(u8::MAX);
        let (operator, value) = comparison(argument);
        SeccompCondition::new(index, SeccompCmpArgLen::Qword, operator, value)
    });
    conditions
        .collect::<Result<Vec<_>, _>>()
        .and_then(SeccompRule::new)
        .map(Some)
        .map_err(|error| error.to_string())
}

fn comparison(argument: &LinuxSeccompArg) -> (SeccompCmpOp, u64) {
    let value = argument.value();
    let operator = match argument.op() {
        LinuxSeccompOperator::ScmpCmpNe => SeccompCmpOp::Ne,
        LinuxSeccompOperator::ScmpCmpLt => SeccompCmpOp::Lt,
        LinuxSeccompOperator::ScmpCmpLe => SeccompCmpOp::Le,
        LinuxSeccompOperator::ScmpCmpEq => SeccompCmpOp::Eq,
        LinuxSeccompOperator::ScmpCmpGe => SeccompCmpOp::Ge,
        LinuxSeccompOperator::ScmpCmpGt => SeccompCmpOp::Gt,
        // In this operator `value` is the mask.
        LinuxSeccompOperator::ScmpCmpMaskedEq => {
            return (
                SeccompCmpOp::MaskedEq(value),
                argument.value_two().unwrap_or(0),
            );
        }
    };
    (operator, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(text: &str) -> Result<usize, String> {
        compile(&super::super::profile_file::parse(
            text,
            &Default::default(),
        )?)
        .map(|programs| programs.len())
    }

    #[test]
    fn one_program_for_the_default_and_one_for_each_other_answer() {
        let default = super::super::default_rules().unwrap();
        let default = compile(&default).unwrap();
        assert_eq!(default.len(), 2);
        assert!(default.iter().all(|program| program.len() < 400));
        let deny = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["mkdir", "rmdir"], "action": "SCMP_ACT_ERRNO"},
            {"names": ["chmod"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            {"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}"#;
        assert_eq!(programs(deny), Ok(2));
        let nothing = r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#;
        assert_eq!(programs(nothing), Ok(0));
    }

    #[test]
    fn numbers_in_a_row_are_one_comparison() {
        let numbers = [0, 1, 2, 5, 7, 8];
        let program = in_ranges(numbers.into_iter(), &SeccompAction::Allow);
        let bounds: Vec<(u32, u32)> = program[1..]
            .chunks(3)
            .map(|range| (range[0].k, range[1].k))
            .collect();
        assert_eq!(bounds, [(0, 2), (5, 5), (7, 8)]);
    }

    #[test]
    fn answers_that_need_a_supervisor_are_refused() {
        let text = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}]}"#;
        assert!(programs(text).unwrap_err().contains("SCMP_ACT_NOTIFY"));
    }
}
