%% Expressions that every private node evaluates when its virtual machine starts: a door for tests, on the loopback
%% interface. A client sends a token and an Erlang expression and gets the printed value. It costs a millisecond where
%% `rabbitmqctl` costs half a second, and it also answers while the broker application is stopped. Frames carry their
%% length in four bytes.
{Port, Token} = {list_to_integer(os:getenv("INBOX_CONTROL_PORT")), list_to_binary(os:getenv("INBOX_CONTROL_TOKEN"))}.
Evaluate = fun(Text) ->
    try
        {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Text)),
        {ok, Expressions} = erl_parse:parse_exprs(Tokens),
        {value, Value, _} = erl_eval:exprs(Expressions, erl_eval:new_bindings()),
        case Value of
            {json, Term} -> [<<"ok">>, rabbit_json:encode(Term)];
            _ -> [<<"ok">>, unicode:characters_to_binary(io_lib:format("~0tp", [Value]))]
        end
    catch
        Class:Reason:Stack ->
            [<<"no">>, unicode:characters_to_binary(io_lib:format("~0tp", [{Class, Reason, lists:sublist(Stack, 3)}]))]
    end
end.
Serve = fun Serve(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Request} ->
            Size = byte_size(Token),
            case Request of
                <<Given:Size/binary, Text/binary>> when Given =:= Token ->
                    ok = gen_tcp:send(Socket, Evaluate(Text)),
                    Serve(Socket);
                _ ->
                    gen_tcp:close(Socket)
            end;
        {error, _} ->
            gen_tcp:close(Socket)
    end
end.
Accept = fun Accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Handler = spawn(fun() -> receive go -> Serve(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Handler),
    Handler ! go,
    Accept(Listener)
end.
spawn(fun() ->
    {ok, Listener} = gen_tcp:listen(Port, [binary, {packet, 4}, {active, false}, {ip, {127, 0, 0, 1}}, {reuseaddr,
    true}]), Accept(Listener)
end).
