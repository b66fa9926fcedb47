//! What an operator can do, and the control socket.
