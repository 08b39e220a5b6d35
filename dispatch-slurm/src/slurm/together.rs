//! Submitting equal containers together, as [`crate::arrays`] has it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use dispatch_core::dry_run::Source;
use dispatch_core::handover;
use dispatch_core::scheduler::{Order, SchedulerError};
use dispatch_core::world::JobId;
use futures_util::{StreamExt, stream};

use super::{NAME, Slurm, locked};
use crate::arrays::{self, Common, Element, LEAST};
use crate::squeue;
use crate::submission::{self, Argument};

/// Directories that are made at once.
const ABREAST: usize = 8;

type Answer = Result<JobId, SchedulerError>;

/// So many arrays in a row, or parts of one, that got no names; then none is submitted any more.
const MOST_UNNAMED: u32 = 2;

impl Slurm {
    /// Orders that Slurm can take as arrays; those that it cannot are handed back, to come again alone.
    pub(super) async fn submit_together(&self, orders: Vec<Order>) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(orders.len());
        let mut alike: BTreeMap<Common, Vec<usize>> = BTreeMap::new();
        for (n, order) in orders.iter().enumerate() {
            let rendered = self.common(order);
            answers.push(match rendered {
                Err(detail) => Some(Err(refused(order, detail))),
                Ok(None) => Some(Err(alone(
                    order,
                    "its arguments of sbatch are not for arrays",
                ))),
                Ok(Some(common)) => {
                    alike.entry(common).or_default().push(n);
                    None
                }
            });
        }
        for (common, numbers) in alike {
            let those: Vec<&Order> = numbers.iter().map(|n| &orders[*n]).collect();
            let given = match those.len() < LEAST {
                true => {
                    let few = "too few have the same arguments of sbatch";
                    those.iter().map(|order| Err(alone(order, few))).collect()
                }
                false => self.prepared(&common, &those).await,
            };
            for (n, answer) in numbers.into_iter().zip(given) {
                answers[n] = Some(answer);
            }
        }
        let unasked = |order: &Order| Err(alone(order, "it was not asked"));
        let answers = orders.iter().zip(answers);
        answers
            .map(|(order, answer)| answer.unwrap_or_else(|| unasked(order)))
            .collect()
    }

    fn common(&self, order: &Order) -> Result<Option<Common>, String> {
        let job = submission::Job {
            container: &order.container,
            needs: &order.needs,
            comment: &squeue::comment(&order.attempt, &self.label),
            output: &self.dir(&order.container).output_file(),
            avoid: &order.avoid,
        };
        let arguments = self.settings.sbatch(job).map_err(|e| e.to_string())?;
        Ok(Common::of(&arguments))
    }

    /// Puts the tokens in their places and hands over those that have theirs.
    async fn prepared(&self, common: &Common, orders: &[&Order]) -> Vec<Answer> {
        let prepare = orders.iter().map(|order| async {
            let dir = self.dir(&order.container);
            handover::prepare(NAME, order, &dir).await
        });
        let prepare: Vec<_> = prepare.collect();
        let prepared: Vec<_> = stream::iter(prepare).buffered(ABREAST).collect().await;
        let ready: Vec<&Order> = orders
            .iter()
            .zip(&prepared)
            .filter(|(_, prepared)| prepared.is_ok())
            .map(|(order, _)| *order)
            .collect();
        let mut submitted = match ready.is_empty() {
            true => Vec::new(),
            false => self.submit_array(common, &ready).await,
        }
        .into_iter();
        let answers = orders.iter().zip(prepared).map(|(order, prepared)| {
            prepared?;
            let unasked = || Err(alone(order, "it was not asked"));
            submitted.next().unwrap_or_else(unasked)
        });
        answers.collect()
    }

    /// One array of these orders.
    async fn submit_array(&self, common: &Common, orders: &[&Order]) -> Vec<Answer> {
        let elements: Vec<Element<'_>> = orders
            .iter()
            .map(|order| Element {
                container: &order.container,
                attempt: &order.attempt,
            })
            .collect();
        let all_alone = |why: &str| orders.iter().map(|order| Err(alone(order, why))).collect();
        let script = match common.script(&self.settings, self.shared.path(), &elements) {
            Ok(script) => script,
            Err(error) => return all_alone(&error.to_string()),
        };
        let array = self.arrays.begin(&self.label);
        let arguments = common.arguments(elements.len(), &array.mark);
        let arguments = arguments.into_iter().map(|text| Argument {
            text,
            from: Source::Always("all elements have it"),
        });
        let command = self.settings.command(arguments.collect(), script);
        let submitted = handover::submit(command.patience(self.patience)).await;
        let job = submitted.map(|output| handover::job_number(&output, ";"));
        let job = match job {
            Ok(job) if !job.is_empty() && job.bytes().all(|b| b.is_ascii_digit()) => job,
            // Nothing without a name ever begins, so whatever there may be: none of them was submitted.
            odd => {
                self.nodes.doubt();
                let why = odd.map_or_else(|e| e.to_string(), |job| format!("it answered {job:?}"));
                tracing::warn!(
                    containers = orders.len(),
                    error = why,
                    "an array was not taken; its containers go one by one"
                );
                return all_alone(&why);
            }
        };
        let mut answers = Vec::with_capacity(orders.len());
        for (count, input) in arrays::updates(&job, &elements, &self.label) {
            let first = answers.len();
            let part = orders.iter().skip(first).take(count).enumerate();
            let scontrol = self.settings.client("scontrol").patience(self.patience);
            match scontrol.input(input).succeed().await {
                Ok(_) => {
                    self.unnamed.store(0, Ordering::Relaxed);
                    answers.extend(part.map(|(n, order)| {
                        let id = format!("{job}_{}", first + n);
                        let noted = (order.attempt.clone(), id.clone());
                        locked(&self.jobs).insert(order.container.clone(), noted);
                        self.refusals.taken(&order.container, &order.needs);
                        Ok(JobId(id))
                    }));
                }
                // Those it came to have their names, and are found by them.
                Err(failure) => {
                    // Each such array costs its containers a lock, and they have but a few.
                    if self.unnamed.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_UNNAMED {
                        *locked(&self.elements) = Elements::AtMost(0);
                        tracing::warn!(
                            "Slurm lets nobody name the elements of an array: from now on there is a job each (--arrays=off)"
                        );
                    }
                    let failed =
                        |(_, order): (_, &&Order)| Err(handover::failed(NAME, order, &failure));
                    answers.extend(part.map(failed));
                }
            }
        }
        answers
    }

    /// Cancels elements of arrays that were given up before they had a name. They wait, or somebody let them begin:
    /// then they are not ours to judge.
    pub(super) async fn cancel_nameless(&self, elements: &[String]) {
        tracing::warn!(
            elements = elements.len(),
            "elements of an array that was not submitted to its end are cancelled"
        );
        for part in elements.chunks(arrays::MOST) {
            // One that got its name since is not meant any more.
            let name = format!("--name={}", arrays::NAMELESS);
            let mut arguments = vec!["--state=PENDING", &name];
            arguments.extend(part.iter().map(String::as_str));
            if let Err(error) = self.scancel(&arguments).await {
                tracing::warn!(%error, "they could not be cancelled; it is tried again");
                return;
            }
        }
    }

    /// How many elements an array may have; none, or too few: there are no arrays.
    pub(super) async fn array_limit(&self) -> Elements {
        if !self.settings.arrays || !arrays::may_be(&self.settings) {
            return Elements::AtMost(0);
        }
        let command = self.settings.client("scontrol").patience(self.patience);
        match command.args(["show", "config"]).succeed().await {
            Ok(answer) => Elements::AtMost(arrays::largest(&answer.output)),
            Err(error) => {
                tracing::warn!(%error, "Slurm does not tell how large an array may be; none is submitted yet");
                Elements::Unasked
            }
        }
    }
}

/// How many elements an array may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    /// Nobody's matter but the service's, which alone makes and ends arrays.
    NotOurs,
    /// Slurm has not answered yet.
    Unasked,
    AtMost(usize),
}

fn refused(order: &Order, detail: String) -> SchedulerError {
    SchedulerError::Refused {
        scheduler: NAME,
        container: order.container.clone(),
        detail,
    }
}

fn alone(order: &Order, why: &str) -> SchedulerError {
    SchedulerError::NotTogether {
        scheduler: NAME,
        container: order.container.clone(),
        detail: why.to_owned(),
    }
}
