//! What a Redis is asked, each in one round trip and at one moment: Lua scripts, sent by their hash.
//!
//! The keys of a call share the hash tag of their member, so a cluster keeps them on one node. The time is the server's own.

use std::sync::LazyLock;
use std::time::Duration;

use deadpool_redis::redis::aio::ConnectionLike;
use deadpool_redis::redis::{
    ErrorKind, FromRedisValue, ParsingError, Pipeline, RedisResult, ServerErrorKind, Value as Reply, cmd,
};

use super::lock::{By, End, Fingerprint, Lock, MINUTE, Refused, Spent, Value, Verdict};

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::of(include_str!("take.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::of(include_str!("release.lua")));
static FINISH: LazyLock<Script> = LazyLock::new(|| Script::of(include_str!("finish.lua")));

/// A script and the hash that a server knows it by once it has seen it.
struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn of(text: &'static str) -> Self {
        Self { text, hash: deadpool_redis::redis::Script::new(text).get_hash().to_owned() }
    }
}

/// Makes the scripts known to a server. One that refuses is sent their texts when it says that it does not know them.
pub(super) async fn load(connection: &mut impl ConnectionLike) {
    for script in [&TAKE, &RELEASE, &FINISH] {
        let _: RedisResult<String> = cmd("SCRIPT").arg("LOAD").arg(script.text).query_async(connection).await;
    }
}

/// A script with its keys and arguments.
pub(super) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    arguments: Vec<String>,
}

/// How a server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// For what it holds.
    Plain,
    /// For what another server of the cluster is about to hand over to it.
    HandedOver,
}

impl Call {
    pub(super) fn take(lock: &Lock) -> Self {
        Self::take_for(lock, millis(lock.window))
    }

    /// Asks what [`Self::take`] would be told, and takes nothing.
    pub(super) fn look(lock: &Lock) -> Self {
        Self::take_for(lock, 0)
    }

    fn take_for(lock: &Lock, window_ms: u64) -> Self {
        let mut call = Self::about(&TAKE, lock, vec![lock.running().to_string(), window_ms.to_string()]);
        if let Some(budget) = &lock.budget {
            let period = millis(MINUTE).to_string();
            call.arguments.extend([budget.most.to_string(), period, lock.counted(false)]);
        }
        call
    }

    pub(super) fn settle(lock: &Lock, end: &End) -> Self {
        let whose = vec![lock.token.clone(), lock.counted(false)];
        match end {
            End::Released => Self::about(&RELEASE, lock, whose),
            End::Finished { at_most, outcome } => {
                let mut call = Self::about(&FINISH, lock, whose);
                let (value, most) = (lock.finished(outcome.clone()), at_most.map_or(0, millis));
                call.arguments.extend([value.to_string(), most.to_string(), lock.counted(true)]);
                call
            }
        }
    }

    fn about(script: &'static Script, lock: &Lock, arguments: Vec<String>) -> Self {
        let mut keys = vec![lock.key.clone()];
        keys.extend(lock.budget.iter().map(|budget| budget.key.clone()));
        Self { script, keys, arguments }
    }

    /// Sends the script's hash, and its text to a server that does not know it: one that was started since, or that has
    /// become the primary.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        way: Way,
        connection: &mut impl ConnectionLike,
    ) -> RedisResult<T> {
        match self.send("EVALSHA", &self.script.hash, way, connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.run_whole(way, connection).await
            }
            result => result,
        }
    }

    /// Sends the script's text, for whoever may not hear that the hash is unknown.
    pub(super) async fn run_whole<T: FromRedisValue>(
        &self,
        way: Way,
        connection: &mut impl ConnectionLike,
    ) -> RedisResult<T> {
        self.send("EVAL", self.script.text, way, connection).await
    }

    async fn send<T: FromRedisValue>(
        &self,
        command: &str,
        script: &str,
        way: Way,
        connection: &mut impl ConnectionLike,
    ) -> RedisResult<T> {
        let mut command = cmd(command);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        match way {
            Way::Plain => command.query_async(connection).await,
            Way::HandedOver => {
                let mut both = Pipeline::with_capacity(2);
                both.cmd("ASKING").ignore().add_command(command);
                both.query_async(connection).await.map(|(answer,)| answer)
            }
        }
    }
}

/// What `take.lua` answers.
impl FromRedisValue for Verdict {
    fn from_redis_value(reply: Reply) -> Result<Self, ParsingError> {
        let mut words = Vec::<Reply>::from_redis_value(reply)?.into_iter();
        let mut number = || i64::from_redis_value(words.next().unwrap_or(Reply::Nil));
        let decision = number()?;
        if decision == 0 {
            return Ok(Self::Admitted);
        }
        // A lock that ends now is over in a millisecond at most.
        let left = Duration::from_millis(number()?.max(1).unsigned_abs());
        let rest: Vec<String> = words.map(String::from_redis_value).collect::<Result<_, _>>()?;
        let by = match (decision, rest.first()) {
            (1, Some(value)) => By::Lock(Value::read(value)),
            (2, _) => By::Budget(spent(&rest)),
            _ => return Err("an answer of another form".into()),
        };
        Ok(Self::Refused(Refused { left, by }))
    }
}

fn spent(counted: &[String]) -> Spent {
    let finished = counted.iter().map(|one| one.strip_prefix("f "));
    match finished.collect::<Option<Vec<_>>>() {
        Some(all) => Spent::ForSure(all.into_iter().filter_map(fingerprint).collect()),
        None => Spent::ForNow,
    }
}

fn fingerprint(counted: &str) -> Option<Fingerprint> {
    counted.split_once(' ')?.1.parse().ok()
}

/// PX takes whole milliseconds above zero.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
