"""Random interleavings of a whole small fleet against a real database.

Real are lanes, parking, inbox, company, debts, members, pools and PostgreSQL. Played are the broker, the line between
a process and the server, and time: a state machine decides what happens next, and after each step asks the database
whether anything is wrong.

stage      where each lane rests, and until which point it goes next
line       between a process and the server: statements that wait, answers that are lost, sessions without a client
broker     copies of messages, as RabbitMQ treats them
script     what a handler does
fleet      process starts
witness    what the database itself remembers of every change
facts      what must hold after each step, and at rest
"""
