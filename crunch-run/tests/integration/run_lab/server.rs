//! dispatch-api in this process, at a port that stays its own.

use std::path::PathBuf;

use dispatch_api::{Options, Server};
use tokio::net::TcpSocket;

/// A port of this machine, bound and not listened to: who binds it by its number as the server does
/// may listen.
pub fn port() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    socket
}

pub async fn start(state: PathBuf, port: &TcpSocket) -> Server {
    let mut options = Options::new(state);
    options.listen = Some(port.local_addr().unwrap());
    Server::start(&options).await.unwrap()
}
