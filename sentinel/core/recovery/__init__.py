"""The recovery of an incident, a state machine (`transitions` is its table); may the job start again (`budget`)?"""
