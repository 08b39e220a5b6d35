//! The rules of the real API server about containers and tokens, as functions of the simulated
//! world.

use arvados_client::error::StatusCode;
use arvados_client::records::{Authorization, ContainerState};
use arvados_client::{ApiError, ContainerUuid, Error, Token, TokenUuid, scopes};
use jiff::Timestamp;
use serde_json::Value;

use crate::state::{SimWorld, TokenRecord};

/// Number of locks after which the server cancels a container (`MaxDispatchAttempts`).
const MAX_LOCKS: u32 = 10;

/// Who makes a call.
#[derive(Debug, Clone)]
pub enum Caller {
    /// A dispatcher with its own admin token.
    Dispatcher,
    /// The holder of an attempt token.
    Attempt(TokenUuid),
}

impl Caller {
    /// The caller with this token.
    pub fn of(token: &Token) -> Self {
        token.uuid().map_or(Caller::Dispatcher, Caller::Attempt)
    }
}

pub fn api_error(status: u16, message: &str) -> Error {
    Error::Api(ApiError {
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        messages: vec![message.to_owned()],
        request_id: String::new(),
        retry_after: None,
    })
}

impl SimWorld {
    /// Whether the caller's token is valid and may access this container.
    pub fn admit(&self, who: &Caller, uuid: &ContainerUuid) -> Result<(), Error> {
        let Caller::Attempt(token) = who else {
            return Ok(());
        };
        match self.tokens.get(token) {
            None => Err(api_error(401, "no such token")),
            Some(known) if known.expires_at <= self.now() => Err(api_error(401, "token expired")),
            Some(known) if known.container.as_ref() != Some(uuid) => Err(api_error(403, "scope")),
            Some(_) => Ok(()),
        }
    }

    fn state(&self, uuid: &ContainerUuid) -> Result<ContainerState, Error> {
        let record = self.containers.get(uuid);
        record
            .map(|record| record.state.clone())
            .ok_or_else(|| api_error(404, "not found"))
    }

    fn holds_lock(&self, who: &Caller, uuid: &ContainerUuid) -> bool {
        let holder = self.containers.get(uuid).and_then(|r| r.locked_by.as_ref());
        matches!(who, Caller::Attempt(token) if holder == Some(token))
    }

    pub fn mint(&mut self, user: usize, scopes: &[String], end: Timestamp) -> Authorization {
        self.made_tokens += 1;
        let name = format!("sim00-gj3su-{:015}", self.made_tokens);
        let uuid = TokenUuid::parse(&name).expect("a token's uuid");
        let record = TokenRecord {
            user,
            scopes: scopes.to_vec(),
            container: scopes::attempt_container(scopes),
            created_at: self.now(),
            expires_at: end,
            jobs: 0,
            has_locked: false,
        };
        let made = authorization(&uuid, &record);
        self.record_event(|| format!("{uuid} made for {:?}", record.container));
        self.tokens.insert(uuid, record);
        made
    }

    /// Refuses a call with more items than the server accepts.
    pub fn check_bulk(&mut self, items: usize) -> Result<(), Error> {
        let no_bulk = self.faults.no_bulk;
        if self.max_bulk == 1 || self.draw(no_bulk) {
            return Err(api_error(404, "path not found"));
        }
        match items > self.max_bulk {
            true => Err(api_error(422, "too many items")),
            false => Ok(()),
        }
    }

    pub fn lock(&mut self, who: &Caller, uuid: &ContainerUuid, etag: &str) -> Result<(), Error> {
        self.admit(who, uuid)?;
        let state = self.state(uuid)?;
        let record = &self.containers[uuid];
        if state != ContainerState::Queued || record.priority <= 0 {
            return Err(api_error(422, "cannot lock it now"));
        }
        if record.version.to_string() != etag {
            return Err(api_error(412, "it has changed"));
        }
        let Caller::Attempt(token) = who else {
            return Err(api_error(422, "nobody locks with the dispatch token here"));
        };
        self.tally.locks += 1;
        self.check_no_other_token(uuid, token);
        self.change(uuid, |record| {
            record.state = ContainerState::Locked;
            record.locked_by = Some(token.clone());
            record.lock_count += 1;
        });
        Ok(())
    }

    pub fn unlock(&mut self, who: &Caller, uuid: &ContainerUuid) -> Result<ContainerState, Error> {
        self.admit(who, uuid)?;
        if self.state(uuid)? != ContainerState::Locked {
            return Err(api_error(422, "cannot unlock it: it is not Locked"));
        }
        if !self.holds_lock(who, uuid) {
            return Err(api_error(403, "only the holder may unlock"));
        }
        self.tally.unlocks += 1;
        self.check_no_healthy_job(who, uuid, "unlocked");
        self.change(uuid, |record| {
            let given_up = record.lock_count >= MAX_LOCKS;
            record.locked_by = None;
            record.state = match given_up {
                true => ContainerState::Cancelled,
                false => ContainerState::Queued,
            };
            if given_up {
                record.error = Some("locked too often".into());
            }
        });
        self.state(uuid)
    }

    /// A healthy job must not lose its container: that would be a decision without knowledge.
    fn check_no_healthy_job(&mut self, who: &Caller, uuid: &ContainerUuid, what: &str) {
        let Caller::Attempt(token) = who else {
            return;
        };
        let wanted = self.containers.get(uuid).is_some_and(|r| r.priority > 0);
        if wanted && self.healthy_jobs(token).next().is_some() {
            self.violation(format!("{uuid} was {what} although its job is healthy"));
        }
    }

    /// A container that never ran must not be cancelled by others while its attempt can unlock it.
    fn check_cannot_be_unlocked(&mut self, uuid: &ContainerUuid) {
        let record = &self.containers[uuid];
        let holder = record.locked_by.as_ref().and_then(|t| self.tokens.get(t));
        let now = self.now();
        let can_unlock = |token: &TokenRecord| token.expires_at > now && !self.is_hidden(token);
        if record.priority > 0 && holder.is_some_and(can_unlock) {
            self.violation(format!(
                "{uuid} was cancelled although it could go back to the queue"
            ));
        }
    }

    /// Applies a change by a dispatcher, or by the executor itself (`by_executor`).
    pub fn update(
        &mut self,
        who: &Caller,
        uuid: &ContainerUuid,
        change: &Value,
        by_executor: bool,
    ) -> Result<(), Error> {
        self.admit(who, uuid)?;
        let from = self.state(uuid)?;
        let to = serde_json::from_value(change["state"].clone()).ok();
        let holds = self.holds_lock(who, uuid);
        use ContainerState::{Cancelled, Complete, Locked, Queued, Running};
        let allowed = match (&from, to.as_ref().unwrap_or(&from)) {
            (Locked, Running) | (Running, Complete | Running) | (Locked, Locked) => holds,
            (Queued | Locked | Running, Cancelled) => holds || matches!(who, Caller::Dispatcher),
            _ => return Err(api_error(422, "no such change of state")),
        };
        if !allowed {
            return Err(api_error(403, "only the holder may do this"));
        }
        if to == Some(Running) && change["log"].is_null() {
            return Err(api_error(422, "a log is needed"));
        }
        if to == Some(Cancelled) && from == Locked && !holds {
            self.check_cannot_be_unlocked(uuid);
        }
        if to == Some(Cancelled) && !by_executor {
            self.check_no_healthy_job(who, uuid, "cancelled");
        }
        // Only the state may be written then, without a reason.
        let holder = self.containers[uuid].locked_by.as_ref();
        let is_hidden = holder.and_then(|token| self.tokens.get(token));
        let is_hidden = is_hidden.is_some_and(|token| self.is_hidden(token));
        self.change(uuid, |record| {
            if to == Some(Cancelled) && is_hidden && !holds {
                record.error = Some("its dispatcher cannot see the token of its attempt".into());
            }
            if let Some(to) = to {
                record.state = to;
            }
            if record.state.is_final() {
                record.locked_by = None;
            }
            if let Some(log) = change["log"].as_str() {
                record.log = Some(log.to_owned());
            }
            if let Some(error) = change["runtime_status"]["error"].as_str() {
                record.error = Some(error.to_owned());
            }
        });
        Ok(())
    }
}

pub fn authorization(uuid: &TokenUuid, record: &TokenRecord) -> Authorization {
    Authorization {
        uuid: uuid.clone(),
        owner_uuid: None,
        api_token: Some(Token::new("simulated")),
        scopes: record.scopes.clone(),
        expires_at: Some(record.expires_at),
        created_at: Some(record.created_at),
    }
}
