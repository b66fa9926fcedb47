//! Decides from the syntax tree whether a template only writes out the texts of messages. If so, the text around them
//! is the same for any texts. Anything that is not known to be harmless counts as harmful. Must not know conversations
//! or the use of the result.

use std::collections::BTreeMap;

use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CompareOpKind, Expr, ForLoop, Set, SetBlock, Spanned, Stmt, UnaryOpKind,
};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

use crate::bounds::CAP;

/// The fields of `loop` that do not depend on the values of its items.
const OF_LOOPS: [&str; 10] =
    ["index", "index0", "first", "last", "length", "revindex", "revindex0", "depth", "depth0", "cycle"];
/// Tests that depend only on the type of a value.
const OF_KINDS: [&str; 10] = [
    "string",
    "defined",
    "undefined",
    "none",
    "mapping",
    "iterable",
    "sequence",
    "number",
    "integer",
    "boolean",
];
/// Functions whose results depend only on their arguments.
const FUNCTIONS: [&str; 2] = ["range", "dict"];

/// Variables that are `none` wherever an outline is used, unless the template sets them.
const NEVER_GIVEN: [&str; 2] = ["tools", "documents"];

/// What the value of an expression may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueDependence {
    /// Does not depend on the texts of messages.
    Free,
    /// A string put together from non-blank texts of messages and free strings, or a free value.
    Text,
    /// A message, or a free value.
    Message,
    /// Some of the messages, or a free value.
    Messages,
    /// A `namespace(…)`, whose fields change.
    Space,
}

use ValueDependence::{Free, Message, Messages, Space, Text};

/// Whether the output of `source` contains the texts of messages and otherwise does not depend on them. This applies to
/// messages with the same roles whose texts are not blank and have no white space at their ends.
pub(crate) fn only_writes(source: &str, syntax: &SyntaxConfig) -> bool {
    let Ok(root) = parse(source, "chat_template", syntax.clone()) else { return false };
    let mut reader = TemplateFacts::default();
    // The body of a loop may read a variable that it sets further down.
    loop {
        reader.learned = false;
        if reader.statement(&root).is_none() {
            return false;
        }
        if !reader.learned {
            return true;
        }
    }
}

/// The facts learnt so far, regardless of their position in the template. Its functions return `None` for anything
/// harmful.
#[derive(Debug, Default)]
struct TemplateFacts {
    /// The kinds of variables.
    names: BTreeMap<String, ValueDependence>,
    /// The kinds of the fields of namespaces, by name alone.
    fields: BTreeMap<String, ValueDependence>,
    learned: bool,
}

/// Returns the kind of a value that has one of two kinds. `None` if no kind covers both.
fn either(one: ValueDependence, other: ValueDependence) -> Option<ValueDependence> {
    match (one, other) {
        (Free, kind) | (kind, Free) => Some(kind),
        (one, other) => (one == other).then_some(one),
    }
}

/// Returns the kind of the truth value of something. It is free, because the texts are never blank. `None` for a
/// namespace.
fn truth(kind: ValueDependence) -> Option<ValueDependence> {
    (kind != Space).then_some(Free)
}

fn free(kind: ValueDependence) -> Option<ValueDependence> {
    (kind == Free).then_some(Free)
}

/// Returns the text of a string constant.
fn word<'e>(expression: &'e Expr<'_>) -> Option<&'e str> {
    match expression {
        Expr::Const(constant) => constant.value.as_str(),
        _ => None,
    }
}

/// Whether the expression is a constant that equals no message and no non-empty text.
fn is_nothing(expression: &Expr<'_>) -> bool {
    match expression {
        Expr::Const(constant) => {
            let value = &constant.value;
            value.is_none() || value.as_str() == Some("") || bool::try_from(value.clone()).is_ok()
        }
        _ => false,
    }
}

impl TemplateFacts {
    fn statements(&mut self, statements: &[Stmt<'_>]) -> Option<()> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Option<()> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Some(()),
            Stmt::EmitExpr(written) => matches!(self.expression(&written.expr)?, Free | Text).then_some(()),
            Stmt::ForLoop(walk) => self.walk(walk),
            Stmt::IfCond(branch) => {
                let asked = self.expression(&branch.expr)?;
                truth(asked)?;
                let known = self.known(&branch.expr);
                if known != Some(false) {
                    self.statements(&branch.true_body)?;
                }
                if known != Some(true) {
                    self.statements(&branch.false_body)?;
                }
                Some(())
            }
            Stmt::WithBlock(block) => {
                for (target, value) in &block.assignments {
                    let kind = self.expression(value)?;
                    self.assign(target, kind)?;
                }
                self.statements(&block.body)
            }
            Stmt::Set(set) => self.set(set),
            Stmt::SetBlock(set) => self.set_block(set),
            Stmt::Do(act) => self.call(&act.call).map(drop),
            _ => None,
        }
    }

    fn walk(&mut self, walk: &Spanned<ForLoop<'_>>) -> Option<()> {
        let item = match self.expression(&walk.iter)? {
            Free => Free,
            Messages => Message,
            Text | Message | Space => return None,
        };
        if walk.recursive {
            return None;
        }
        self.assign(&walk.target, item)?;
        if let Some(filter) = &walk.filter_expr {
            let asked = self.expression(filter)?;
            truth(asked)?;
        }
        self.statements(&walk.body)?;
        self.statements(&walk.else_body)
    }

    fn set(&mut self, set: &Spanned<Set<'_>>) -> Option<()> {
        let kind = self.expression(&set.expr)?;
        self.assign(&set.target, kind)
    }

    fn set_block(&mut self, set: &Spanned<SetBlock<'_>>) -> Option<()> {
        if set.filter.is_some() {
            return None;
        }
        self.statements(&set.body)?;
        self.assign(&set.target, Text)
    }

    fn assign(&mut self, target: &Expr<'_>, kind: ValueDependence) -> Option<()> {
        match target {
            Expr::Var(name) => self.learn(name.id, kind, false),
            Expr::GetAttr(field) => {
                (self.expression(&field.expr)? == Space).then_some(())?;
                self.learn(field.name, kind, true)
            }
            Expr::List(list) => self.unpack(&list.items, kind),
            Expr::Tuple(tuple) => self.unpack(&tuple.items, kind),
            _ => None,
        }
    }

    /// Unpacks a value, which must be free. All targets are then free.
    fn unpack(&mut self, targets: &[Expr<'_>], kind: ValueDependence) -> Option<()> {
        free(kind)?;
        targets.iter().try_for_each(|target| self.assign(target, Free))
    }

    fn learn(&mut self, name: &str, kind: ValueDependence, field: bool) -> Option<()> {
        let known = if field { &mut self.fields } else { &mut self.names };
        let before = known.get(name).copied();
        let now = either(before.unwrap_or(Free), kind)?;
        if Some(now) != before {
            known.insert(name.to_owned(), now);
            self.learned = true;
        }
        Some(())
    }

    fn expression(&mut self, expression: &Expr<'_>) -> Option<ValueDependence> {
        match expression {
            Expr::Const(_) => Some(Free),
            Expr::Var(name) => self.variable(name.id),
            Expr::Slice(slice) => {
                for bound in [&slice.start, &slice.stop, &slice.step].into_iter().flatten() {
                    let kind = self.expression(bound)?;
                    free(kind)?;
                }
                let kind = self.expression(&slice.expr)?;
                matches!(kind, Free | Messages).then_some(kind)
            }
            Expr::UnaryOp(operation) => {
                let kind = self.expression(&operation.expr)?;
                match operation.op {
                    UnaryOpKind::Not => truth(kind),
                    UnaryOpKind::Neg => free(kind),
                }
            }
            Expr::BinOp(operation) => self.operation(operation.op, &operation.left, &operation.right),
            Expr::Compare(compared) => {
                let mut left = &compared.expr;
                for next in &compared.ops {
                    let equality = matches!(next.op, CompareOpKind::Eq | CompareOpKind::Ne);
                    let within = matches!(next.op, CompareOpKind::In | CompareOpKind::NotIn);
                    self.compare(equality, within, left, &next.expr)?;
                    left = &next.expr;
                }
                Some(Free)
            }
            Expr::IfExpr(branch) => {
                let asked = self.expression(&branch.test_expr)?;
                truth(asked)?;
                let known = self.known(&branch.test_expr);
                let one = if known == Some(false) { Free } else { self.expression(&branch.true_expr)? };
                let other = branch.false_expr.as_ref().filter(|_| known != Some(true));
                either(one, other.map_or(Some(Free), |other| self.expression(other))?)
            }
            Expr::Filter(filter) => {
                self.free_arguments(&filter.args)?;
                let kind = self.expression(filter.expr.as_ref()?)?;
                if kind == Messages && matches!(filter.name, "selectattr" | "rejectattr") {
                    let field = filter.args.first().and_then(|field| match field {
                        CallArg::Pos(field) => word(field),
                        _ => None,
                    });
                    return (field == Some("role")).then_some(Messages);
                }
                filtered(filter.name, filter.args.is_empty(), kind)
            }
            Expr::Test(test) => {
                self.free_arguments(&test.args)?;
                let kind = self.expression(&test.expr)?;
                (kind == Free || (kind != Space && OF_KINDS.contains(&test.name))).then_some(Free)
            }
            Expr::GetAttr(field) => self.field(&field.expr, field.name),
            Expr::GetItem(item) => match word(&item.subscript_expr) {
                Some(name) => self.field(&item.expr, name),
                None => {
                    let at = self.expression(&item.subscript_expr)?;
                    free(at)?;
                    match self.expression(&item.expr)? {
                        Free => Some(Free),
                        Messages => Some(Message),
                        Text | Message | Space => None,
                    }
                }
            },
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.all_free(&list.items),
            Expr::Tuple(tuple) => self.all_free(&tuple.items),
            Expr::Map(map) => {
                self.all_free(&map.keys)?;
                self.all_free(&map.values)
            }
        }
    }

    fn variable(&self, name: &str) -> Option<ValueDependence> {
        let set = self.names.get(name).copied().unwrap_or(Free);
        match name {
            "messages" => either(Messages, set),
            // These reveal neighbouring items, all variables or the time. The harmless fields of `loop` are handled in
            // [`Self::field`].
            "loop" | "debug" | "self" | "strftime_now" => None,
            _ => Some(set),
        }
    }

    fn field(&mut self, of: &Expr<'_>, name: &str) -> Option<ValueDependence> {
        if matches!(of, Expr::Var(variable) if variable.id == "loop") {
            return OF_LOOPS.contains(&name).then_some(Free);
        }
        match self.expression(of)? {
            Free => Some(Free),
            Message => Some(if name == "content" { Text } else { Free }),
            Space => Some(self.fields.get(name).copied().unwrap_or(Free)),
            Text | Messages => None,
        }
    }

    fn operation(
        &mut self,
        operation: BinOpKind,
        left: &Expr<'_>,
        right: &Expr<'_>,
    ) -> Option<ValueDependence> {
        let equality = matches!(operation, BinOpKind::Eq | BinOpKind::Ne);
        let within = matches!(operation, BinOpKind::In);
        if equality || within {
            return self.compare(equality, within, left, right);
        }
        let continues = match operation {
            BinOpKind::ScAnd => self.known(left) != Some(false),
            BinOpKind::ScOr => self.known(left) != Some(true),
            _ => true,
        };
        let left = self.expression(left)?;
        let right = if continues { self.expression(right)? } else { Free };
        match operation {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                truth(left)?;
                either(left, right)
            }
            BinOpKind::Add | BinOpKind::Concat => match (left, right) {
                (Free, Free) => Some(Free),
                (Free | Text, Free | Text) => Some(Text),
                _ => None,
            },
            _ => free(left).and(free(right)),
        }
    }

    /// Returns the truth value of an expression if it is known. Outlines are used only if there are no tools and no
    /// documents.
    fn known(&self, expression: &Expr<'_>) -> Option<bool> {
        let is_absent = |name: &str| NEVER_GIVEN.contains(&name) && !self.names.contains_key(name);
        match expression {
            Expr::Var(name) => is_absent(name.id).then_some(false),
            Expr::Test(test) => match (&test.expr, test.name) {
                (Expr::Var(name), "none") => is_absent(name.id).then_some(true),
                _ => None,
            },
            Expr::UnaryOp(operation) => match operation.op {
                UnaryOpKind::Not => self.known(&operation.expr).map(|known| !known),
                UnaryOpKind::Neg => None,
            },
            Expr::BinOp(operation) => {
                let (left, right) = (self.known(&operation.left), self.known(&operation.right));
                match operation.op {
                    BinOpKind::ScAnd if left == Some(false) || right == Some(false) => Some(false),
                    BinOpKind::ScOr if left == Some(true) || right == Some(true) => Some(true),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn compare(
        &mut self,
        equality: bool,
        within: bool,
        left: &Expr<'_>,
        right: &Expr<'_>,
    ) -> Option<ValueDependence> {
        let kinds = (self.expression(left)?, self.expression(right)?);
        match kinds {
            (Free, Free) => Some(Free),
            // The fields of a message are known.
            (Free, Message) if within => Some(Free),
            (Free, Text | Message | Messages) if equality && is_nothing(left) => Some(Free),
            (Text | Message | Messages, Free) if equality && is_nothing(right) => Some(Free),
            _ => None,
        }
    }

    fn call(&mut self, call: &Call<'_>) -> Option<ValueDependence> {
        match &call.expr {
            Expr::Var(function) if self.names.contains_key(function.id) => None,
            // The content of the message does not matter, because nothing is rendered after it.
            Expr::Var(function) if function.id == "raise_exception" => Some(Free),
            Expr::Var(function) if function.id == "namespace" => {
                self.free_arguments(&call.args)?;
                Some(Space)
            }
            Expr::Var(function) if FUNCTIONS.contains(&function.id) => {
                self.free_arguments(&call.args)?;
                Some(Free)
            }
            Expr::GetAttr(method) => {
                self.free_arguments(&call.args)?;
                if matches!(&method.expr, Expr::Var(variable) if variable.id == "loop") {
                    return (method.name == "cycle").then_some(Free);
                }
                match (self.expression(&method.expr)?, method.name) {
                    (Free, _) => Some(Free),
                    (Text, "strip" | "lstrip" | "rstrip") if call.args.is_empty() => Some(Text),
                    (Message, "get") => match call.args.first()? {
                        CallArg::Pos(name) => Some(if word(name)? == "content" { Text } else { Free }),
                        _ => None,
                    },
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn free_arguments(&mut self, arguments: &[CallArg<'_>]) -> Option<()> {
        for argument in arguments {
            let (CallArg::Pos(value)
            | CallArg::Kwarg(_, value)
            | CallArg::PosSplat(value)
            | CallArg::KwargSplat(value)) = argument;
            let kind = self.expression(value)?;
            free(kind)?;
        }
        Some(())
    }

    fn all_free(&mut self, items: &[Expr<'_>]) -> Option<ValueDependence> {
        for item in items {
            let kind = self.expression(item)?;
            free(kind)?;
        }
        Some(Free)
    }
}

/// Returns the kind of a filter's result.
fn filtered(name: &str, bare: bool, kind: ValueDependence) -> Option<ValueDependence> {
    match (name, kind) {
        (CAP, kind) => Some(kind),
        (_, Free) => Some(Free),
        ("trim", Text) if bare => Some(Text),
        ("string" | "default" | "d", Text) => Some(Text),
        ("length" | "count", Messages) => Some(Free),
        ("first" | "last", Messages) => Some(Message),
        ("list", Messages) => Some(Messages),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::only_writes;
    use minijinja::syntax::SyntaxConfig;

    fn found(source: &str) -> bool {
        only_writes(source, &SyntaxConfig::default())
    }

    #[test]
    fn templates_that_only_write_texts_are_told_from_others() {
        let each = |body: &str| format!("{{% for m in messages %}}{body}{{% endfor %}}");
        for harmless in [
            String::new(),
            "{{ messages[0].content }}{{ messages[-1]['content'] | trim }}".to_owned(),
            each("<{{ m.role }}>{{ m['content'] }}"),
            each("{{ '<' + m.role ~ m.content + '>' }}{{ loop.index }}{{ loop.cycle('a', 'b') }}"),
            each("{% if m.content and not loop.last %}{{ m.content.strip() }}{% endif %}"),
            each("{% if m.content is string and m.content != '' and m.content is not none %}x{% endif %}"),
            each("{% if 'tool_calls' in m or m.tool_calls %}x{% endif %}{{ m.get('content') }}"),
            each("{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception(m.content) }}{% endif %}"),
            "{% set ns = namespace(s='', n=0) %}{% for m in messages %}{% set ns.s = ns.s + m.content %}\
             {% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.s }}{{ ns.n }}"
                .to_owned(),
            "{% set messages = messages[1:] %}{{ (messages | last).content or 'none' }}{{ messages | length }}".to_owned(),
            "{% set all %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ all | trim }}".to_owned(),
            "{% for i in range(messages | length) %}{{ messages[i].content }}{% endfor %}".to_owned(),
            each("{% if tools is not none and m == messages[-1] %}{{ m | tojson }}{% endif %}"),
            each("{{ m | tojson if tools else m.content }}{{ (tools and m | tojson) or m.content }}"),
            each("{{ (not tools or m | tojson) and 1 }}{% if tools %}{{ m | tojson }}{% else %}{{ m.content }}{% endif %}"),
            "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{{ users[-1].content }}".to_owned(),
            "{{ tools | tojson }}{{ bos_token ~ (add_generation_prompt | upper) }}".to_owned(),
        ] {
            assert!(found(&harmless), "{harmless}");
        }
        for harm in [
            "{{ messages }}".to_owned(),
            "{{ messages | tojson }}".to_owned(),
            "{{ debug() }}".to_owned(),
            "{{ (messages | map(attribute='content') | list)[0][:2] }}".to_owned(),
            each("{{ m }}"),
            each("{{ m | length }}{{ m.items() }}"),
            each("{{ m.content | length }}"),
            each("{{ m.content | upper }}"),
            each("{{ m.content | trim('x') }}"),
            each("{{ m.content.strip('x') }}"),
            each("{{ m.content[0] }}"),
            each("{{ m.content[1:] }}"),
            each("{{ m.content * 2 }}"),
            each("{{ m.content.split('x')[0] }}"),
            each("{{ m.content.startswith('x') }}"),
            each("{% if 'x' in m.content %}y{% endif %}"),
            each("{% if m.content in ['x'] %}y{% endif %}"),
            each("{% if m.content == 'x' %}y{% endif %}"),
            each("{% if m.content > '' %}y{% endif %}"),
            each("{% if m.content is eq('x') %}y{% endif %}"),
            each("{% if 1 == m.content != 'x' %}y{% endif %}"),
            each("{% for c in m.content %}{{ c }}{% endfor %}"),
            each("{% for k in m %}{{ k }}{% endfor %}"),
            each("{{ [m.content] }}"),
            each("{{ {'a': m.content} }}"),
            each("{{ {m.content: 1} }}"),
            each("{{ dict(a=m.content) }}"),
            each("{{ messages[m.content] }}"),
            each("{{ range(m.content) }}"),
            each("{% set c = m.content %}{{ c | upper }}"),
            each("{{ c | upper }}{% set c = m.content %}"),
            each("{{ loop.previtem.content | upper }}"),
            each("{{ loop.changed(m.content) }}"),
            each("{% set l = loop %}{{ l.nextitem.content | upper }}"),
            each("{% filter upper %}{{ m.content }}{% endfilter %}"),
            each("{% set c | upper %}{{ m.content }}{% endset %}{{ c }}"),
            each("{% set c %}{{ m.content }}{% endset %}{{ c | upper }}"),
            each("{% with c = m.content %}{{ c | upper }}{% endwith %}"),
            each("{% macro w(c) %}{{ c | upper }}{% endmacro %}{{ w(m.content) }}"),
            each("{% set a, b = m.content, 1 %}{{ a | upper }}"),
            each("{% do m.content.append(1) %}"),
            each("{% set ns = namespace(c=m.content) %}{{ ns.c | upper }}"),
            each("{% set ns = namespace() %}{% set ns.c = m.content %}{{ ns }}"),
            each("{% set ns = namespace() %}{% set a = ns %}{% set a.c = m.content %}{{ ns.c | upper }}"),
            each("{% set ns = namespace() %}{% set a = ns %}{% set a.c = m.content %}{{ ns['c'] | upper }}"),
            each("{% set ns = namespace() %}{% set a = ns %}{% set a.c = m.content %}{{ ns | tojson }}"),
            each(
                "{% set ns = namespace() %}{% set ns.c = m.content %}{% set x = [ns] %}{{ x[0].c | upper }}",
            ),
            each("{% set ns = namespace() %}{% set ns.c = m.content %}{{ (ns or 1).c | upper }}"),
            each("{% set raise_exception = namespace %}{{ raise_exception(c=m.content).c | upper }}"),
            each("{{ {'f': debug}.f() }}"),
            each("{% if tools is not none or m == messages[-1] %}x{% endif %}"),
            each("{% set tools = 1 %}{{ m | tojson if tools else m.content }}"),
            each("{{ m | tojson if tools else m.content }}{% set tools = 1 %}"),
            each("{% for tools in range(2) %}{% if tools %}{{ m | tojson }}{% endif %}{% endfor %}"),
            each("{% if not tools %}{{ m | tojson }}{% endif %}"),
            each("{% if not (tools is none) or m.content %}{{ m.content | upper }}{% endif %}"),
            each("{{ tools or m | tojson }}"),
            each("{% if tools is defined %}{{ m | tojson }}{% endif %}"),
            each(
                "{% set users = messages | selectattr('content', 'equalto', 'x') | list %}{{ users[-1].content }}",
            ),
            each("{% set users = messages | selectattr(m.content) | list %}{{ users[-1].content }}"),
            each("{% set users = messages | selectattr('role') | list %}{{ users }}"),
            each("{% set users = messages | map(attribute='role') | list %}{{ users[-1].content }}"),
            each("{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}"),
            "{{ strftime_now('%Y') }}".to_owned(),
            "{% include 'x' %}".to_owned(),
            "{% block b %}{% endblock %}{{ self.b() }}".to_owned(),
            "{{ messages | map(attribute='content') | join }}".to_owned(),
            "{{ messages | selectattr('content', 'eq', 'x') | list | length }}".to_owned(),
            "{% for m in messages if 'x' in m.content %}y{% endfor %}".to_owned(),
            "{% for m in messages if m.content | length %}y{% endfor %}".to_owned(),
        ] {
            assert!(!found(&harm), "{harm}");
        }
    }
}
